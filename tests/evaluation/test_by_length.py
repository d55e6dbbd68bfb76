"""BLEU by sentence length (also save_figure.py): buckets, table, plot and errors."""

import pytest

from regard.errors import DataError, OptionError
from regard.evaluation.bleu import corpus_bleu
from regard.evaluation.by_length import bleu_by_length, plot, table
from regard.pictures import picture


def lines(*sizes):
    return [" ".join(f"w{i}" for i in range(size)) for size in sizes]


SOURCES = lines(3, 10, 11, 20, 21, 75)
REFERENCES = lines(8, 8, 9, 9, 7, 60)


def corrupted(references):
    return [line.replace("w4", "x") for line in references]


def test_each_bucket_is_scored_as_a_separate_corpus():
    hypotheses = [*REFERENCES[:2], *corrupted(REFERENCES[2:])]
    result = bleu_by_length(hypotheses, REFERENCES, SOURCES)
    assert [(b.label, b.lines) for b in result.buckets] == [
        ("1–10", 2), ("11–20", 2), ("21–30", 1), ("31–40", 0), ("41–50", 0), ("51+", 1)
    ]  # fmt: skip
    assert result.buckets[0].bleu == pytest.approx(100)
    assert result.buckets[1].bleu == pytest.approx(corpus_bleu(hypotheses[2:4], REFERENCES[2:4]))
    assert result.buckets[3].bleu is None
    assert result.length_of == "source"
    assert sum(b.lines for b in result.buckets) == len(SOURCES)


def test_without_a_source_reference_words_are_counted():
    result = bleu_by_length(REFERENCES, REFERENCES, edges=(7, 8))
    assert result.length_of == "reference"
    assert [b.lines for b in result.buckets] == [1, 2, 3]


def test_empty_lines_belong_to_the_first_bucket():
    result = bleu_by_length(["a b c d", "a"], ["a b c d", "a"], ["", "a b"], edges=(1,))
    assert [b.lines for b in result.buckets] == [1, 1]


def test_several_references_and_other_measures_of_length():
    other = corrupted(REFERENCES)
    result = bleu_by_length(other, [REFERENCES, other], SOURCES, length=len, edges=(30, 60))
    assert [b.lines for b in result.buckets] == [2, 1, 3]
    assert [b.bleu for b in result.buckets] == pytest.approx([100] * 3)


def test_table_and_plot_show_several_systems(tmp_path):
    good, bad = (bleu_by_length(h, REFERENCES, SOURCES) for h in (REFERENCES, corrupted(REFERENCES)))
    rows = table({"attention": good, "none": bad}).splitlines()
    assert rows[0].split() == ["words", "of", "source", "lines", "attention", "none"]
    assert rows[1].split()[:3] == ["1–10", "2", "100.00"]
    assert rows[4].split() == ["31–40", "0", "–", "–"]
    assert len(str(good).splitlines()) == 7
    path = plot({"attention": good, "none": bad}, tmp_path / "lengths.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.stat().st_size > 5000


def test_as_dict_is_ready_for_json():
    import json

    result = bleu_by_length(REFERENCES, REFERENCES, SOURCES)
    again = json.loads(json.dumps(result.as_dict()))
    assert again["length_of"] == "source"
    assert again["buckets"][-1] == {"shortest": 51, "longest": None, "lines": 1, "bleu": pytest.approx(100)}


def test_invalid_input_is_an_error(tmp_path):
    with pytest.raises(DataError, match="the source has 5 lines but the hypothesis has 6"):
        bleu_by_length(REFERENCES, REFERENCES, SOURCES[:5])
    for edges in ((), (0, 5), (5, 5), (9, 3), (2.5,), (True,)):
        with pytest.raises(OptionError, match="edges must be increasing integers"):
            bleu_by_length(REFERENCES, REFERENCES, SOURCES, edges=edges)
    result = bleu_by_length(REFERENCES, REFERENCES, SOURCES)
    with pytest.raises(DataError, match="b has other buckets than a"):
        table({"a": result, "b": bleu_by_length(REFERENCES, REFERENCES, SOURCES, edges=(5,))})
    with pytest.raises(DataError, match="no curves to show"):
        table({})
    with pytest.raises(OptionError, match=r"saved as \.png, \.svg or \.pdf, got lengths\.gif2"):
        plot({"a": result}, tmp_path / "lengths.gif2")
    with pytest.raises(DataError, match="cannot be written: No such file or directory"):
        plot({"a": result}, tmp_path / "nowhere" / "lengths.png")


def test_without_matplotlib_a_plot_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    result = bleu_by_length(["a b c d"], ["a b c d"], ["a b c d"])
    with pytest.raises(OptionError, match=r'BLEU by length needs matplotlib; pip install "regard\[plot\]"'):
        plot({"a": result}, tmp_path / "lengths.png")
