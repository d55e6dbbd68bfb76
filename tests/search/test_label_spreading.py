"""Label spreading, and the table in which suggested labels are reviewed.

Covers label_table.py.
"""

import numpy as np
import pytest

from regard.errors import DataError, OptionError
from regard.search.label_spreading import spread_labels
from regard.search.label_table import LabelRow, format_table, read_table, reviewed_labels


def clusters(distance=3.0):
    """Three clusters of 60 vectors."""
    draw = np.random.default_rng(1)
    centres = distance * np.eye(3, 8)
    x = np.concatenate([centre + 0.5 * draw.standard_normal((60, 8)) for centre in centres]).astype(
        np.float32
    )
    return x / np.linalg.norm(x, axis=1, keepdims=True), np.repeat(["a", "b", "c"], 60)


def test_one_example_per_cluster_is_enough_to_label_it():
    x, gold = clusters()
    labels, confidence = spread_labels(x, {0: "a", 60: "b", 120: "c"}).best()
    assert np.mean(np.array(labels) == gold) > 0.97
    assert (confidence[[0, 60, 120]] == 1).all() and (confidence <= 1).all() and (confidence > 1 / 3).all()


def test_confidence_is_lower_where_clusters_overlap():
    separate = spread_labels(clusters(5.0)[0], {0: "a", 60: "b", 120: "c"}).best()[1]
    overlapping = spread_labels(clusters(0.7)[0], {0: "a", 60: "b", 120: "c"}).best()[1]
    assert separate.mean() > overlapping.mean()
    probabilities = spread_labels(clusters()[0], {0: "a", 60: "b"}).probabilities
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-4)


def test_many_identical_texts_are_labelled():
    x = np.tile(np.eye(2, dtype=np.float32), (40, 1))
    labels, _ = spread_labels(x, {0: "a", 1: "b"}, neighbours=3).best()
    assert labels == ["a", "b"] * 40


def test_fewer_than_two_labels_are_an_error():
    x, _ = clusters()
    with pytest.raises(DataError, match="all 2 examples are 'a'"):
        spread_labels(x, {0: "a", 1: "a"})
    with pytest.raises(DataError, match="there are no examples"):
        spread_labels(x, {})
    with pytest.raises(OptionError, match="neighbours must be an integer of at least 1, got 0"):
        spread_labels(x, {0: "a", 1: "b"}, neighbours=0)


def test_reviewed_rows_of_a_table_become_examples(tmp_path):
    rows = [
        LabelRow("a", "sure\tof it", "a", 0.99, False, "1"),
        LabelRow("b", "not sure", "b", 0.4, False, "2"),
        LabelRow("a", "given", "a", 1.0, True, "3"),
    ]
    path = tmp_path / "t.tsv"
    path.write_text(format_table(rows), encoding="utf-8")
    assert [row.text for row in read_table(path)] == ["not sure", "sure of it", "given"]
    assert reviewed_labels(read_table(path)) == {"given": "a"}
    path.write_text(path.read_text(encoding="utf-8").replace("b\tb\t0.4", "a\tb\t0.4"), encoding="utf-8")
    assert reviewed_labels(read_table(path)) == {"not sure": "a", "given": "a"}
    path.write_text(path.read_text(encoding="utf-8").replace("0.9900\t\t", "0.9900\tx\t"), encoding="utf-8")
    assert reviewed_labels(read_table(path)) == {"not sure": "a", "sure of it": "a", "given": "a"}


def test_a_list_of_examples_needs_label_and_text(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\none\ta\n\ntwo\tb\n", encoding="utf-8")
    assert reviewed_labels(read_table(path)) == {"one": "a", "two": "b"}
    for text, message in (
        ("a\tone\n", "line 1 of .* must name the tab-separated columns label and text"),
        ("label\ttext\na\n", "line 2 of .* has 1 columns but line 1 has 2"),
        ("label\ttext\n\tone\n", "line 2, column 1 of .* has no label"),
        ("label\tconfidence\ttext\na\thigh\tone\n", "line 2, column 2 of .* is not a number: 'high'"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            read_table(path)
    with pytest.raises(DataError, match="'one' has two labels, 'a' and 'b'"):
        reviewed_labels([LabelRow("a", "one"), LabelRow("b", "one ")])
