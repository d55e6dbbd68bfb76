"""Every file layout gives the same rows; unequal sides are errors."""

import gzip
import json

import pytest

from regard.data.reader_choice import open_files
from regard.data.readers import MISSING, JsonLines, LinePairs, Table, TextLines
from regard.data.text_files import BAD
from regard.errors import DataError

PAIRS = [("Hello.", "Hallo."), ("A cat", "Eine Katze"), ("line\u2028sep", "Zeile\x85"), ("", "leer")]


@pytest.fixture
def sides(tmp_path):
    for name, side in (("en", 0), ("de", 1)):
        (tmp_path / f"a.{name}").write_text("".join(pair[side] + "\n" for pair in PAIRS), encoding="utf-8")
    return tmp_path / "a.en", tmp_path / "a.de"


def test_line_aligned_files_give_pairs(sides):
    assert list(LinePairs(*sides)) == PAIRS
    assert list(LinePairs(*sides[::-1])) == [pair[::-1] for pair in PAIRS]


def test_a_table_gives_pairs(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{en}\t7\t{de}\n" for en, de in PAIRS) + "only one column\n", encoding="utf-8")
    assert list(Table(path, (1, 3))) == [*PAIRS, ("only one column", MISSING)]


def test_json_lines_give_pairs_and_errors_name_the_line(tmp_path):
    path = tmp_path / "a.jsonl"
    good = [json.dumps({"translation": {"en": en, "de": de}}) for en, de in PAIRS]
    wrong = ['{"translation": 3}', "[]", "{half", '{"translation": {"en": "x", "de": "\\ud83d"}}']
    path.write_text("\n".join(good + wrong) + "\n", encoding="utf-8")
    rows = list(JsonLines(path, ("translation.en", "translation.de")))
    assert rows == [*PAIRS, (MISSING, MISSING), (MISSING, MISSING), (MISSING, MISSING), ("x", BAD)]


def test_sides_of_different_length_stop_with_both_counts(tmp_path):
    (tmp_path / "a").write_text("x\n" * 70_000, encoding="utf-8")
    with gzip.open(tmp_path / "b.gz", "wt", encoding="utf-8") as file:
        file.write("y\n" * 70_001)
    with pytest.raises(DataError, match=r"has 70,000 lines and .*b\.gz has 70,001"):
        list(LinePairs(tmp_path / "a", tmp_path / "b.gz"))


def test_parts_of_a_text_are_split_by_characters(tmp_path):
    text = "".join(f"line {i} {'x' * (i % 7)}\n" for i in range(500))
    (tmp_path / "a").write_text(text, encoding="utf-8")
    first, last = (
        ["".join(row) for row in TextLines(tmp_path / "a", part)] for part in ((0.0, 0.9), (0.9, 1.0))
    )
    cut = int(len(text) * 0.9)
    assert "\n".join(first) == text[:cut].removesuffix("\n")
    assert "\n".join(last) + "\n" == text[cut:]


def test_a_users_files_are_recognised_by_their_suffixes(sides, tmp_path):
    en, de = sides
    assert open_files([en, de], "en", "de", True) == LinePairs(en, de)
    assert open_files([en, de], "de", "en", True) == LinePairs(de, en)
    assert open_files([[en, de]], "de", "en", True) == LinePairs(de, en)
    assert open_files([en, de], None, None, True) == LinePairs(en, de)
    assert list(open_files([str(en), str(en), str(de), str(de)], "en", "de", True)) == PAIRS * 2
    assert list(open_files([[en, de], [en, de]], "en", "de", True)) == PAIRS * 2
    assert list(open_files([en, de], None, None, False)) == [
        (text,) for side in zip(*PAIRS, strict=True) for text in side
    ]


def test_a_table_may_name_its_columns(tmp_path):
    path = tmp_path / "a.tsv.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="\n") as file:
        file.write("id\tde\ten\n1\tHallo\tHello\n")
    assert list(open_files([path], "en", "de", True)) == [("Hello", "Hallo")]
    assert list(open_files([path], 3, "2", True)) == [("Hello", "Hallo")]


@pytest.mark.parametrize("names", [["a.en", "b.en", "c.de"], ["a", "b", "c", "d"], [["a.en"]], []])
def test_files_that_cannot_be_paired_are_refused(names):
    with pytest.raises(DataError):
        open_files(names, "en", "de", True)
