"""Descriptions of data sets: row counts, lengths, samples."""

import pytest

from regard.data import describe as module
from regard.data.describe import describe
from regard.data.readers import Table, TextLines
from regard.errors import DataError


def test_a_description_has_rows_lengths_and_samples(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(
        b"".join(b"%s\tx y\n" % (b"w " * (i + 1)).strip() for i in range(100)) + b"\tempty\nbad \xff\tz\n"
    )
    description = describe(Table(path), samples=4)
    assert (
        description.report.read,
        description.report.kept,
        description.report.empty,
        description.report.bad_utf8,
    ) == (
        102,
        100,
        1,
        1,
    )
    words = description.words[0]
    assert (words.mean, words.median, words.high, words.longest) == (50.5, 50, 95, 100)
    assert description.characters[1].longest == 3 and description.complete
    numbers = [len(row[0].split()) for row in description.samples]
    assert len(numbers) == 4 and numbers == sorted(numbers) and numbers[-1] > 60


def test_a_large_set_is_described_by_its_first_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_ROWS", 50)
    (tmp_path / "a").write_text("word\n" * 200, encoding="utf-8")
    description = describe(TextLines(tmp_path / "a"), samples=0)
    assert description.report.read == 50 and not description.complete and description.samples == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        describe(TextLines(tmp_path / "none"))
