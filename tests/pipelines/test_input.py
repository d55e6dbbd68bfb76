"""Tests of input.py: lines of files, columns and fields, in chunks."""

import csv
import gzip
import io
import json
import lzma
import os
import threading

import pytest

from regard.errors import DataError
from regard.pipelines import input as module
from regard.pipelines.input import BINARY_BYTES, Column, Field, Reader, Source


def texts(source, skip=0):
    reading = Reader(source)
    reading.skip(skip)
    return [row.text for chunk in reading.chunks() for row in chunk.rows]


def write(tmp_path, data, name="in.txt"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\n\r\ntwo\r\n", ["one", "", "two"]),
        (b"\xef\xbb\xbfone\n\n", ["one", ""]),
        (b"", []),
        (b"\n", [""]),
        ("a\u2028b\x85c\x0bd\0e\x1bf\n".encode(), ["a\u2028b\x85c\x0bd\0e\x1bf"]),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_only_a_line_feed_ends_a_line(tmp_path, data, lines, pack):
    source = Source((write(tmp_path, pack(data)),))
    source.check()
    assert texts(source) == lines
    assert source.count_lines()[0] == len(lines)


@pytest.mark.parametrize("data", [bytes(range(256)) * 20, "some text\n".encode("utf-16-le")])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_binary_data_is_refused(tmp_path, data, pack):
    with pytest.raises(DataError, match=r"in\.txt is binary, not text; give a text file in UTF-8"):
        texts(Source((write(tmp_path, pack(data)),)))


def test_a_zero_byte_in_text_is_text(tmp_path):
    lines = ["x" * BINARY_BYTES, "ä\0"]
    line = "ä" * BINARY_BYTES  # the block that is checked ends within a character
    assert texts(Source((write(tmp_path, ("\0" + "\n".join([line, *lines])).encode()),)))[1:] == lines


def test_invalid_utf8_is_replaced_and_reported(tmp_path):
    path = write(tmp_path, b"good\nbad \xff\xfe\n" + b"\xc3\n" * 7)
    count, bad = Source((path,)).count_lines()
    assert count == 9
    assert bad.count == 8
    assert str(bad).startswith("8 lines are not UTF-8 (line 2, line 3, line 4, line 5, line 6, …)")
    assert texts(Source((path,)))[1] == "bad \ufffd\ufffd"
    with pytest.raises(DataError, match=r"line 2 of .*in\.txt is not UTF-8"):
        Source((path,), strict=True).count_lines()


def test_columns_and_fields_are_read_or_the_line_is_named(tmp_path):
    table = write(tmp_path, b"a\tb\n\nc\td\te\nf\n", "in.tsv")
    with pytest.raises(DataError, match=r"line 4 of .*in\.tsv has 1 column and no column 2; check --column"):
        texts(Source((table,), layout=Column(2)))
    assert texts(Source((table,), layout=Column(1))) == ["a", "", "c", "f"]
    lines = ['{"text": "x", "deep": {"er": "y"}}', "", '{"text": "\\ud83d"}']
    path = write(tmp_path, "\n".join(lines).encode(), "in.jsonl")
    count, bad = Source((path,), layout=Field("text")).count_lines()
    assert (count, bad.count) == (3, 1)
    assert texts(Source((path,), layout=Field("text"))) == ["x", "", "?"]
    with pytest.raises(DataError, match=r"line 3 of .* has no text in the field 'deep.er'"):
        texts(Source((path,), layout=Field("deep.er")))
    for wrong in ("[1]", "{", '{"text": 1}', "[" * 100_000):
        path = write(tmp_path, wrong.encode(), "wrong.jsonl")
        with pytest.raises(DataError, match="line 1 of"):
            texts(Source((path,), layout=Field("text")))


def test_chunks_are_bounded_in_lines_and_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_LINES", 3)
    monkeypatch.setattr(module, "CHUNK_BYTES", 10)
    one, two = write(tmp_path, b"a\nb\nc\nd\n", "1"), write(tmp_path, b"0123456789ABC\ne\nf\n", "2")
    chunks = list(Reader(Source((one, two))).chunks())
    assert [(chunk.first, [row.text for row in chunk.rows]) for chunk in chunks] == [
        (0, ["a", "b", "c"]),
        (3, ["d", "0123456789ABC"]),
        (5, ["e", "f"]),
    ]
    large = Reader(Source((one, two), chunk_lines=6)).chunks()
    assert [len(chunk.rows) for chunk in large] == [6, 1]


def test_skipping_gives_the_same_digest_as_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_LINES", 3)
    path = write(tmp_path, b"".join(b"line %d\n" % i for i in range(10)))
    chunks = list(Reader(Source((path,))).chunks())
    assert len(chunks) == 4
    for chunk in chunks:
        place = chunk.first + len(chunk.rows)
        assert Reader(Source((path,))).skip(place) == chunk.digest
        assert texts(Source((path,)), place) == [f"line {i}" for i in range(place, 10)]


def test_lines_of_a_pipe_are_passed_on_as_they_arrive(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    first_lines_were_read = threading.Event()

    def write_in_two_parts():
        with pipe.open("wb", buffering=0) as file:
            file.write(b"one\ntwo\nthr")
            assert first_lines_were_read.wait(120)
            file.write(b"ee\n")

    thread = threading.Thread(target=write_in_two_parts)
    thread.start()
    chunks = Reader(Source((pipe,))).chunks()
    assert [row.text for row in next(chunks).rows] == ["one", "two"]
    first_lines_were_read.set()
    assert [row.text for row in next(chunks).rows] == ["three"]
    assert next(chunks, None) is None
    thread.join()


def test_missing_files_folders_and_lines_without_end_are_errors_of_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="there is no file"):
        Source((tmp_path / "none",)).check()
    with pytest.raises(DataError, match="is a folder"):
        Source((tmp_path,)).check()
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    path = write(tmp_path, b"short\n" + b"x" * 200 + b"\nshort\n")
    with pytest.raises(DataError, match=r"line 2 of .* is longer than 100 bytes"):
        texts(Source((path,)))


def test_json_lines_round_trip(tmp_path):
    values = ["plain", "tab\tand\nline feed", "😀 \u2028", '"quoted" \\']
    path = write(tmp_path, "\n".join(json.dumps({"t": v}) for v in values).encode())
    assert texts(Source((path,), layout=Field("t"))) == values


def test_csv_cells_may_contain_commas_quotes_and_line_ends(tmp_path, monkeypatch):
    rows = [
        ["1", "plain"],
        ["2", 'a "word", quoted'],
        ["3", "two\nlines\r\nor three"],
        ["4", ""],
        ["5", 'ends in "'],
        ["6", "last"],
    ]
    table = io.StringIO(newline="")
    csv.writer(table, lineterminator="\n").writerows([["id", "the text"], *rows])
    path = write(tmp_path, table.getvalue().encode(), "in.csv")
    source = Source((path,), layout=Column(2, ",", quotes=True), header=True)
    assert texts(source) == [text for _, text in rows]
    assert texts(source, skip=3) == ["", 'ends in "', "last"]
    for block in (1, 2, 7, 20):  # for any size of blocks
        monkeypatch.setattr("regard.data.text_files.BLOCK", block)
        assert texts(source) == [text for _, text in rows]
        assert source.count_lines()[0] == 6
    path = write(tmp_path, b'a,"two\nlines"\nb,x\nc\n', "in.csv")
    with pytest.raises(DataError, match=r"line 4 of .*in\.csv has 1 column and no column 2"):
        texts(Source((path,), layout=Column(2, ",", quotes=True)))


def test_cells_may_be_larger_than_the_limit_of_the_csv_module(tmp_path):
    path = write(tmp_path, b'a,"' + b"x" * 200_000 + b'"\n', "in.csv")
    csv.field_size_limit(1 << 17)
    assert len(texts(Source((path,), layout=Column(2, ",", quotes=True)))[0]) == 200_000


def test_inner_quotation_marks_are_text_and_unclosed_ones_are_errors(tmp_path):
    path = write(tmp_path, b'a,5" disk\nb,x\n', "in.csv")
    assert texts(Source((path,), layout=Column(2, ",", quotes=True))) == ['5" disk', "x"]
    path = write(tmp_path, b'a,x\nb,"never\nc,x\n', "in.csv")
    with pytest.raises(DataError, match=r"line 2 of .*in\.csv opens a quotation mark that is never closed"):
        texts(Source((path,), layout=Column(2, ",", quotes=True)))


def test_the_header_of_every_file_is_skipped(tmp_path):
    one, two = write(tmp_path, b"id\ttext\n1\ta\n", "1.tsv"), write(tmp_path, b"id\ttext\n", "2.tsv")
    source = Source((one, two, one), layout=Column(2), header=True)
    assert texts(source) == ["a", "a"]
    assert source.count_lines()[0] == 2
