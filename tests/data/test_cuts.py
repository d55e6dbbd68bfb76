"""Folds and shares held out: whole, apart, alike for every class, and the same on every machine."""

from collections import Counter

import pytest

from regard.data.cuts import Cut, Part
from regard.data.load import load, split_rows
from regard.data.reading import Table
from regard.errors import DataError, OptionError


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "all.tsv"
    path.write_text("".join(f"text number {i}\t{'abc'[i % 3]}\n" for i in range(90)), encoding="utf-8")
    return path


def test_folds_are_disjoint_make_up_the_whole_and_have_every_class_alike(table):
    folds = [list(Cut(Table(table), (k - 1) / 5, k / 5)) for k in range(1, 6)]
    assert sorted(row for fold in folds for row in fold) == sorted(Table(table))
    for number, fold in enumerate(folds, 1):
        assert Counter(label for _, label in fold) == {"a": 6, "b": 6, "c": 6}
        rest = list(Cut(Table(table), (number - 1) / 5, number / 5, inside=False))
        assert not set(rest) & set(fold) and len(rest) == 72


def test_the_cut_depends_on_the_texts_and_not_on_their_order(table, tmp_path):
    turned = tmp_path / "turned.tsv"
    turned.write_text("".join(reversed(table.read_text(encoding="utf-8").splitlines(keepends=True))), encoding="utf-8")
    assert set(Cut(Table(table), 0.2, 0.4)) == set(Cut(Table(turned), 0.2, 0.4))


def test_a_class_of_one_row_stays_in_training(tmp_path):
    path = tmp_path / "rare.tsv"
    path.write_text("".join(f"t{i}\tx\n" for i in range(20)) + "alone\trare\n", encoding="utf-8")
    assert ("alone", "rare") in list(Cut(Table(path), 0.0, 0.1, inside=False))


def test_equal_texts_fall_into_the_same_part(tmp_path):
    path = tmp_path / "twins.tsv"
    path.write_text("".join(f"text {i % 10}\tx\n" for i in range(100)), encoding="utf-8")
    inside, outside = (set(Cut(Table(path), 0.0, 0.3, inside=which)) for which in (True, False))
    assert len(inside & outside) <= 1  # where the cut goes between them


def test_halves_are_those_of_the_file_and_know_their_lines(table):
    second = Part(Table(table), 0.5, 1.0)
    assert list(second) == list(Table(table))[45:]
    assert second.place(0, 1) == f"{table} line 46, column 2"


def test_a_held_out_share_validates_and_a_fold_tests(table):
    data = {"train": [str(table)], "folds": 5, "fold": 2, "hold_out": 0.25}
    parts = {split: list(split_rows(data, split, "classify")) for split in ("train", "validation", "test")}
    assert {split: len(rows) for split, rows in parts.items()} == {"train": 54, "validation": 18, "test": 18}
    assert sorted(row for rows in parts.values() for row in rows) == sorted(Table(table))
    corpus = load(data, {"kind": "word"}, "classify")
    assert corpus.test_names == ["test"] and corpus.validation is not None and len(corpus.test().targets) == 18


def test_a_known_corpus_without_splits_has_its_customary_folds(real_data):
    data = {"corpus": "sentence-polarity", "fold": 3}
    assert len(list(split_rows(data, "test", "classify"))) == 1066
    with pytest.raises(OptionError, match="data.fold is 11 and there are 10 folds"):
        split_rows({**data, "fold": 11}, "test", "classify")


def test_a_fold_of_nothing_is_refused(table):
    with pytest.raises(OptionError, match="data.folds does not say of how many"):
        split_rows({"train": [str(table)], "fold": 2}, "test", "classify")
    with pytest.raises(DataError, match="no corpus and no files for test"):
        split_rows({"train": [str(table)]}, "test", "classify")
