"""Documents are read from lines, tables, JSONL and folders; errors name file, line and column."""

import gzip

import pytest

from regard.errors import DataError, OptionError
from regard.search.documents import Document, read_documents


def write(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_are_documents_named_by_file_and_line(tmp_path):
    path = write(tmp_path, "a.txt", "one\n\n  two \n")
    documents = read_documents([path])
    assert documents.documents == [Document(f"{path}:1", "one"), Document(f"{path}:3", "two")]
    assert documents.warnings() == ["1 empty text was left out"]


def test_compressed_files_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\r\ntwo\r\n"))
    assert read_documents([path]).texts == ["one", "two"]


def test_columns_are_selected_by_number_or_name(tmp_path):
    table = write(tmp_path, "a.csv", 'id,body\n7,"one, two"\n8,"three\nfour"\n')
    assert read_documents([table], text="body", name="id").documents == [
        Document("7", "one, two"),
        Document("8", "three\nfour"),
    ]
    plain = write(tmp_path, "b.tsv", "7\tone\n8\ttwo\n")
    assert read_documents([plain], text="2", name="1").documents == [
        Document("7", "one"),
        Document("8", "two"),
    ]
    fields = write(tmp_path, "c.jsonl", '{"text": "one", "meta": {"id": "x"}}\n')
    assert read_documents([fields], name="meta.id").documents == [Document("x", "one")]


def test_each_text_file_of_a_folder_is_a_document(tmp_path):
    write(tmp_path, "f/b/x.txt", "two\nlines\n")
    write(tmp_path, "f/a.txt", "one")
    write(tmp_path, "f/ignored.md", "no")
    assert read_documents([tmp_path / "f"]).documents == [
        Document("a.txt", "one"),
        Document("b/x.txt", "two lines"),
    ]


def test_invalid_utf8_is_counted_or_an_error_if_strict(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nb\xffd\n")
    documents = read_documents([path])
    assert documents.texts == ["good", "b\ufffdd"] and "1 line is not UTF-8" in documents.warnings()[0]
    with pytest.raises(DataError, match="line 2 of .* is not UTF-8"):
        read_documents([path], strict=True)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x.txt").write_bytes(b"b\xffd")
    assert read_documents([tmp_path / "f"]).texts == ["b\ufffdd"]
    with pytest.raises(DataError, match=r"x.txt is not UTF-8"):
        read_documents([tmp_path / "f"], strict=True)


def test_wrong_files_and_columns_are_errors_with_a_fix(tmp_path):
    table = write(tmp_path, "a.csv", "id,body\n7,one\n7,two\n")
    missing_id = write(tmp_path, "b.tsv", "x\tone\n\ttwo\n")
    cases = [
        ([tmp_path / "none.txt"], {}, DataError, "there is no file"),
        ([write(tmp_path, "empty.txt", "")], {}, DataError, "empty.txt is empty"),
        ([write(tmp_path, "blank.txt", "\n \n")], {}, DataError, "blank.txt contain no text"),
        ([table], {}, OptionError, "is a comma-separated table; select the text column"),
        (
            [table],
            {"text": "title"},
            OptionError,
            "line 1 of .* has no column 'title' for --text; it has 'id', 'body'",
        ),
        ([table], {"text": "3"}, DataError, "line 1 of .*a.csv has 2 columns and no column 3"),
        ([table], {"text": "0"}, OptionError, "--text counts columns from 1"),
        ([table], {"text": "body", "name": "id"}, DataError, "two documents have the id '7'"),
        ([missing_id], {"text": "2", "name": "1"}, DataError, "line 2 of .* has no id in the --id column"),
        ([write(tmp_path, "l.txt", "x")], {"text": "1"}, OptionError, "is read as plain lines"),
        (
            [write(tmp_path, "d.jsonl", '{"a": 1}\n')],
            {},
            DataError,
            "line 1 of .* has no text in the field 'text'",
        ),
    ]
    for paths, options, error, message in cases:
        with pytest.raises(error, match=message):
            read_documents(paths, **options)
    (tmp_path / "hollow").mkdir()
    with pytest.raises(DataError, match=r"contains no .txt file"):
        read_documents([tmp_path / "hollow"])
