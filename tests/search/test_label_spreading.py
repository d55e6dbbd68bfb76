"""A few labels reach all texts near them, and say how sure they are; a person's word is read back from the table."""

import numpy as np
import pytest

from regard.errors import DataError, OptionError
from regard.search.label_spreading import spread_labels
from regard.search.label_table import Row, examples, read, table


def clouds(far=3.0):
    """Three clouds of 60 vectors."""
    draw = np.random.default_rng(1)
    centres = far * np.eye(3, 8)
    x = np.concatenate([centre + 0.5 * draw.standard_normal((60, 8)) for centre in centres]).astype(
        np.float32
    )
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.repeat(["a", "b", "c"], 60)


def test_one_example_of_each_labels_its_cloud():
    x, gold = clouds()
    labels, sure = spread_labels(x, {0: "a", 60: "b", 120: "c"}).best()
    assert np.mean(np.array(labels) == gold) > 0.97
    assert (sure[[0, 60, 120]] == 1).all() and (sure <= 1).all() and (sure > 1 / 3).all()


def test_shares_are_sure_where_clouds_are_apart_and_less_where_they_meet():
    apart = spread_labels(clouds(5.0)[0], {0: "a", 60: "b", 120: "c"}).best()[1]
    meeting = spread_labels(clouds(0.7)[0], {0: "a", 60: "b", 120: "c"}).best()[1]
    assert apart.mean() > meeting.mean()
    shares = spread_labels(clouds()[0], {0: "a", 60: "b"}).shares
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-4)


def test_texts_that_are_the_same_many_times_are_no_trouble():
    x = np.tile(np.eye(2, dtype=np.float32), (40, 1))
    labels, _ = spread_labels(x, {0: "a", 1: "b"}, neighbours=3).best()
    assert labels == ["a", "b"] * 40


def test_too_few_labels_are_one_sentence():
    x, _ = clouds()
    with pytest.raises(DataError, match="all 2 examples are 'a'"):
        spread_labels(x, {0: "a", 1: "a"})
    with pytest.raises(DataError, match="there are no examples"):
        spread_labels(x, {})
    with pytest.raises(OptionError, match="neighbours is a whole number of at least 1, got 0"):
        spread_labels(x, {0: "a", 1: "b"}, neighbours=0)


def test_a_table_is_read_back_with_what_a_person_changed(tmp_path):
    rows = [
        Row("a", "sure\tof it", "a", 0.99, False, "1"),
        Row("b", "not sure", "b", 0.4, False, "2"),
        Row("a", "given", "a", 1.0, True, "3"),
    ]
    path = tmp_path / "t.tsv"
    path.write_text(table(rows), encoding="utf-8")
    assert [row.text for row in read(path)] == ["not sure", "sure of it", "given"]
    assert examples(read(path)) == {"given": "a"}
    path.write_text(path.read_text(encoding="utf-8").replace("b\tb\t0.4", "a\tb\t0.4"), encoding="utf-8")
    assert examples(read(path)) == {"not sure": "a", "given": "a"}
    path.write_text(path.read_text(encoding="utf-8").replace("0.9900\t\t", "0.9900\tx\t"), encoding="utf-8")
    assert examples(read(path)) == {"not sure": "a", "sure of it": "a", "given": "a"}


def test_a_plain_list_of_examples_needs_label_and_text(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\none\ta\n\ntwo\tb\n", encoding="utf-8")
    assert examples(read(path)) == {"one": "a", "two": "b"}
    for text, sentence in (
        ("a\tone\n", "line 1 of .* must name the columns label and text"),
        ("label\ttext\na\n", "line 2 of .* has 1 columns where line 1 has 2"),
        ("label\ttext\n\tone\n", "line 2, column 1 of .* has no label"),
        ("label\tconfidence\ttext\na\thigh\tone\n", "line 2, column 2 of .* is no number: 'high'"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=sentence):
            read(path)
    with pytest.raises(DataError, match="'one' has two labels, 'a' and 'b'"):
        examples([Row("a", "one"), Row("b", "one ")])
