"""Folds and held-out rows: complete, disjoint, stratified, and the same on every machine."""

import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from regard.data.datasets import load_corpus as load
from regard.data.datasets import split_rows
from regard.data.readers import Rows, Table, ignore
from regard.data.splits import HashSplitRows, RowRange, SplitRows, hash_split
from regard.errors import DataError, OptionError


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "all.tsv"
    path.write_text("".join(f"text number {i}\t{'abc'[i % 3]}\n" for i in range(90)), encoding="utf-8")
    return path


def test_folds_are_disjoint_cover_all_rows_and_are_stratified(table):
    folds = [list(SplitRows(Table(table), (k - 1) / 5, k / 5)) for k in range(1, 6)]
    assert sorted(row for fold in folds for row in fold) == sorted(Table(table))
    for number, fold in enumerate(folds, 1):
        assert Counter(label for _, label in fold) == {"a": 6, "b": 6, "c": 6}
        rest = list(SplitRows(Table(table), (number - 1) / 5, number / 5, inside=False))
        assert not set(rest) & set(fold) and len(rest) == 72


def test_splits_by_hash_keep_equal_texts_together(tmp_path):
    rows = [(f"sentence {i % 900}", f"Satz {i}") for i in range(3000)]
    (tmp_path / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    parts = {
        split: list(HashSplitRows(Table(tmp_path / "a.tsv"), 0, split))
        for split in ("train", "validation", "test")
    }
    assert sorted(row for part in parts.values() for row in part) == sorted(rows)
    english = {split: {row[0] for row in part} for split, part in parts.items()}
    assert not english["train"] & english["test"] and not english["train"] & english["validation"]
    assert 5 < len(english["test"]) < 50 and 5 < len(english["validation"]) < 50  # 2 of 100, of 900


def test_the_split_of_a_text_never_changes():
    assert hash_split("May I go?") == "validation"
    assert hash_split("Hi.") == "train"


def test_a_row_of_a_split_by_hash_knows_its_line(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("Hi.\tHallo.\nMay I go?\tDarf ich gehen?\n", encoding="utf-8")
    assert HashSplitRows(Table(path), 0, "validation").place(0, 1) == f"{path} line 2, column 2"


def test_the_split_depends_on_the_texts_and_not_on_their_order(table, tmp_path):
    turned = tmp_path / "turned.tsv"
    turned.write_text(
        "".join(reversed(table.read_text(encoding="utf-8").splitlines(keepends=True))), encoding="utf-8"
    )
    assert set(SplitRows(Table(table), 0.2, 0.4)) == set(SplitRows(Table(turned), 0.2, 0.4))


def test_a_class_of_one_row_stays_in_training(tmp_path):
    path = tmp_path / "rare.tsv"
    path.write_text("".join(f"t{i}\tx\n" for i in range(20)) + "alone\trare\n", encoding="utf-8")
    assert ("alone", "rare") in list(SplitRows(Table(path), 0.0, 0.1, inside=False))


def test_equal_texts_are_in_the_same_split(tmp_path):
    path = tmp_path / "twins.tsv"
    path.write_text("".join(f"text {i % 10}\tx\n" for i in range(100)), encoding="utf-8")
    inside, outside = (set(SplitRows(Table(path), 0.0, 0.3, inside=which)) for which in (True, False))
    assert not inside & outside and len(list(SplitRows(Table(path), 0.0, 0.3))) == 30


def test_halves_of_a_file_know_their_lines(table):
    second = RowRange(Table(table), 0.5, 1.0)
    assert list(second) == list(Table(table))[45:]
    assert second.place(0, 1) == f"{table} line 46, column 2"


def test_validation_is_a_held_out_share_and_test_a_fold(table):
    data = {"train": [str(table)], "folds": 5, "fold": 2, "hold_out": 0.25}
    parts = {split: list(split_rows(data, split, "classify")) for split in ("train", "validation", "test")}
    assert {split: len(rows) for split, rows in parts.items()} == {"train": 54, "validation": 18, "test": 18}
    assert sorted(row for rows in parts.values() for row in rows) == sorted(Table(table))
    corpus = load(data, {"kind": "word"}, "classify")
    assert (
        corpus.test_names == ["test"] and corpus.validation is not None and len(corpus.test().targets) == 18
    )


def test_a_corpus_without_splits_has_its_usual_folds(real_data):
    data = {"corpus": "sentence-polarity", "fold": 3}
    assert len(list(split_rows(data, "test", "classify"))) == 1066
    with pytest.raises(OptionError, match="data.fold is 11 of 10 folds"):
        split_rows({**data, "fold": 11}, "test", "classify")


def test_an_empty_fold_is_refused(table):
    with pytest.raises(OptionError, match="data.folds, the number of folds, is not set"):
        split_rows({"train": [str(table)], "fold": 2}, "test", "classify")
    with pytest.raises(DataError, match="no corpus and no files for test"):
        split_rows({"train": [str(table)]}, "test", "classify")


@dataclass(frozen=True)
class Many(Rows):
    """Rows that are generated while they are read."""

    count: int
    files, paired = (), True

    def layout(self):
        return {}

    def blocks(self, advance=ignore):
        for start in range(0, self.count, 1000):
            yield tuple([f"{side} {i}" for i in range(start, start + 1000)] for side in "xy")


def test_choosing_held_out_rows_takes_no_memory_per_row(monkeypatch):
    monkeypatch.setattr("regard.data.splits.EXACT", 1000)
    peaks, kept = [], []
    for count in (20_000, 80_000):
        cut = SplitRows(Many(count), 0.0, 0.1, classes=False)
        tracemalloc.start()
        kept.append(sum(len(block[0]) for block in cut.blocks()))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        rest = sum(len(block[0]) for block in replace(cut, inside=False).blocks())
        assert kept[-1] + rest == count and abs(kept[-1] / count - 0.1) < 0.01
    assert peaks[1] < 1.2 * peaks[0] < 2e6, peaks  # regression: it kept an object per row


def test_the_end_of_a_text_is_held_out(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i}\n" for i in range(50)), encoding="utf-8")
    data = {"train": [str(path)], "hold_out": 0.1}
    train, validation = (list(split_rows(data, split, "language")) for split in ("train", "validation"))
    assert train == [(f"line {i}",) for i in range(45)] and validation == [
        (f"line {i}",) for i in range(45, 50)
    ]
