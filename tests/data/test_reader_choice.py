"""User tables: columns by name or number, quotes, scores, and positions of cells.

Covers csv_reader.py.
"""

import gzip
import json

import pytest

from regard.data.csv_reader import Csv
from regard.data.reader_choice import open_labelled
from regard.data.text_files import BAD
from regard.errors import DataError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_quoted_cells_keep_commas_and_their_line_ends_become_spaces(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"one, two",x\n"three\nfour",y\nfive,z\n')
    rows = Csv(path, (1, 2), header=True)
    assert list(rows) == [("one, two", "x"), ("three four", "y"), ("five", "z")]
    assert rows.place(2, 1) == f"{path} line 5, column 2"  # the row before it took two lines


def test_a_row_without_the_column_keeps_its_row_number(tmp_path):
    rows = Csv(write(tmp_path / "a.csv", "a,x\nb\nc,z\n"))
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert list(rows)[1][1].startswith("\udcff")


@pytest.mark.parametrize("rest", ["c,z\n" * 3, "c,z\n" * 300_000])  # more than a cell may have
def test_a_quote_that_is_never_closed_is_an_error_and_no_row_is_lost(tmp_path, rest):
    rows = Csv(write(tmp_path / "a.csv", f'a,x\n"two\nlines",y\n"b,y\n{rest}'))
    with pytest.raises(DataError, match=r"line 4 of .*a\.csv opens a quotation mark that is never closed"):
        list(rows)


def test_quotes_of_a_row_that_is_not_utf8_count_for_the_lines_after_it(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('a,x\n"caf\xe9\ntwo, lines",y\n"three\nd\xe9",z\nb,\xe9\nc,z\n'.encode("latin-1"))
    rows = list(Csv(path))
    assert [row for row in rows if row[0] != BAD] == [("a", "x"), ("c", "z")] and len(rows) == 5


def test_a_score_column_is_read_and_filters_rows(tmp_path):
    path = write(tmp_path / "s.csv", "a,b,4.5\nc,d,1.0\n")
    assert Csv(path, score=3).scores() == [4.5, 1.0]
    assert list(Csv(path, score=3, least=4.0)) == [("a", "b")]
    with pytest.raises(DataError, match="line 1, column 3 holds 'good' where a number is expected"):
        Csv(write(tmp_path / "bad.csv", "a,b,good\n"), score=3).scores()


@pytest.mark.parametrize(
    ("name", "text", "source", "target"),
    [
        ("a.tsv", "label\ttext\nx\tone\n", "text", "label"),
        ("a.tsv", "label\ttext\nx\tone\n", None, None),
        ("a.tsv", "x\tone\n", "2", "1"),
        ("a.tsv", "one\tx\n", None, None),
        ("a.csv", "id,text,label\n7,one,x\n", "text", "label"),
        ("a.csv", "7,one,x\n", "2", "3"),
        ("a.jsonl", json.dumps({"text": "one", "label": "x"}) + "\n", None, None),
        ("a.jsonl", json.dumps({"q": "one", "a": {"b": "x"}}) + "\n", "q", "a.b"),
    ],
)
def test_columns_are_chosen_by_name_by_number_or_by_default(tmp_path, name, text, source, target):
    assert list(open_labelled(write(tmp_path / name, text), source, target)) == [("one", "x")]


def test_labels_of_json_may_be_numbers(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "one", "label": 1}\n{"text": "two", "label": true}\n')
    assert [label for _, label in open_labelled(path, None, None)] == ["1", "true"]


def test_compressed_tables_are_read(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"text,label\none,x\n"))
    assert list(open_labelled(path, "text", "label")) == [("one", "x")]


def test_a_missing_column_is_named(tmp_path):
    path = write(tmp_path / "a.tsv", "text\tlabel\none\tx\n")
    with pytest.raises(DataError, match=r"line 1 names no column 'txt'; it has 'text', 'label'"):
        open_labelled(path, "txt", "label")
    with pytest.raises(DataError, match="has 2 columns in line 1 and no column 3"):
        open_labelled(path, "1", "3")
