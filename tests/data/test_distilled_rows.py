"""Rows with a teacher's translations as targets."""

import json

import pytest

from regard.data import distilled_rows
from regard.data.distilled_rows import DistilledRows, TeacherTranslations, text_hashes, write_translations
from regard.data.readers import Table

PAIRS = [("one", "eins"), ("two\twords", "zwei\nZeilen"), ("drei ü", "three")]


@pytest.fixture
def translations(tmp_path):
    folder = tmp_path / "translations"
    folder.mkdir()
    write_translations(folder, PAIRS, {"kept": 3})
    return TeacherTranslations(folder)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("one\tA\nfour\tB\none\tC\ndrei ü\tD\n", encoding="utf-8")
    return Table(path)


def test_translations_are_found_by_source(translations):
    assert translations.lookup([s for s, _ in PAIRS]) == [t for _, t in PAIRS]
    assert translations.lookup(["unknown", "one", ""]) == [None, "eins", None]
    assert translations.counts == {"kept": 3}


def test_sources_that_share_a_hash_are_not_confused(tmp_path, monkeypatch):
    monkeypatch.setattr(distilled_rows, "text_hashes", lambda texts: text_hashes(["same"] * len(texts)))
    write_translations(tmp_path, [("one", "eins")], {})
    assert TeacherTranslations(tmp_path).lookup(["one", "two"]) == ["eins", None]


def test_repeated_sources_stay_and_untranslated_ones_are_left_out(translations, rows):
    assert list(DistilledRows(rows, translations)) == [("one", "eins"), ("one", "eins"), ("drei ü", "three")]


def test_both_adds_the_original_rows(translations, rows):
    distilled = [("one", "eins"), ("one", "eins"), ("drei ü", "three")]
    assert list(DistilledRows(rows, translations, both=True)) == distilled + list(rows)


def test_the_limit_counts_original_rows(translations, rows):
    assert list(DistilledRows(rows, translations, limit=2)) == [("one", "eins")]
    assert list(DistilledRows(rows, translations, True, 2)) == [("one", "eins"), ("one", "A"), ("four", "B")]


def test_the_identity_of_the_rows_includes_the_translations_and_the_choice_of_targets(translations, rows):
    one = DistilledRows(rows, translations)
    assert one.files == (*rows.files, translations.file)
    layouts = [one, DistilledRows(rows, translations, True), DistilledRows(rows, translations, limit=2)]
    assert len({json.dumps(distilled.layout()) for distilled in layouts}) == 3
