"""Tests of table.py and output_formats.py: the column with the text, and lines of tables."""

import pytest

from regard.data.column_detection import detect_table
from regard.errors import DataError, OptionError
from regard.pipelines.input import Column, Field, Row, WholeLine
from regard.pipelines.output_formats import split_row, table_line
from regard.pipelines.table import TextLocation, locate_text


def write(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize(
    ("name", "text", "column", "layout", "header"),
    [
        ("a.csv", "id,text\n1,a\n", None, Column(2, ",", True), True),
        ("a.csv", "id;Review\n1;a, b\n2;c, d\n", None, Column(2, ";", True), True),
        ("a.csv", "id;x\n1;a\n2;b\n", "X", Column(2, ";", True), True),
        ("a.tsv", "1\ta\n2\tb\n", "2", Column(2), False),
        ("a.tsv", "source\ttarget\na\tb\n", None, Column(1), True),
        ("a.txt", "1|a\n2|b\n", "2", Column(2, "|", True), False),
        ("a.csv", "text\nhello\n", None, Column(1, ",", True), True),
        ("a.tsv", "hello\nworld\n", None, Column(1), False),  # one column needs no name
        ("a.csv", "", "2", Column(1), False),  # an empty file has no texts
    ],
)
def test_the_text_column_is_detected(tmp_path, name, text, column, layout, header):
    result = locate_text([write(tmp_path, name, text)], column)
    assert (result.layout, result.header) == (layout, header)
    if header:
        assert len(result.names) == len(text.splitlines()[0].split(layout.separator))


def test_the_separator_is_detected_as_in_training(tmp_path):
    for name, separator in (("a.csv", ";"), ("b.tsv", ","), ("c.csv", "\t"), ("d.txt", "|")):
        path = write(tmp_path, name, "".join(f"{i}{separator}some text\n" for i in range(9)))
        assert detect_table(path).separator == locate_text([path], "2").layout.separator == separator


def test_other_files_are_lines_and_json_has_fields(tmp_path):
    assert locate_text([write(tmp_path, "a.txt", "a,b\n")]) == TextLocation(WholeLine())
    assert locate_text([write(tmp_path, "a.jsonl", "{}\n")]) == TextLocation(Field("text"))
    assert locate_text([write(tmp_path, "a.jsonl", "{}\n")], field="q") == TextLocation(Field("q"))
    assert locate_text([]) == TextLocation(WholeLine())


def test_detected_columns_are_reported(tmp_path):
    assert locate_text([write(tmp_path, "a.csv", "id,q\n1,a\n")], "q").note == ""
    note = locate_text([write(tmp_path, "a.csv", "id;review\n1;a\n")]).note
    assert note == "a.csv: columns separated by semicolons; the text is column 2 'review'"


def test_wrong_columns_are_errors_in_one_sentence(tmp_path):
    one, two = write(tmp_path, "1.csv", "id,text\n1,a\n"), write(tmp_path, "2.csv", "text,id\na,1\n")
    with pytest.raises(DataError, match="the column 'text' is at different places in these files"):
        locate_text([one, two])
    with pytest.raises(DataError, match=r"line 1 of .*1\.csv names no column 'q'; it has 'id', 'text'"):
        locate_text([one], "q")
    with pytest.raises(DataError, match="there is no column 0: columns are counted from 1"):
        locate_text([one], "0")
    with pytest.raises(OptionError, match="give one of them"):
        locate_text([one], "1", "text")
    with pytest.raises(OptionError, match="files of different kinds"):
        locate_text([one, write(tmp_path, "a.txt", "a\n")])


def test_rows_are_split_and_joined_unchanged():
    split = split_row(Column(1, ";", quotes=True))
    assert split(Row('"a; b";c', "")) == ["a; b", "c"]
    assert split_row(WholeLine())(Row("a;b", "a;b")) == ["a;b"]
    assert table_line(["a, b", "c\nd"], commas=True) == '"a, b","c\nd"\n'
    assert table_line(["a, b", "c\nd"], commas=False) == "a, b\tc d\n"
