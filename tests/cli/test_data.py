"""Tests of data.py: the list, a corpus, own files, wrong input."""

from functools import partial
from pathlib import Path

import pytest


@pytest.fixture
def run(run_regard, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", "nowhere")
    monkeypatch.setenv("COLUMNS", "100")
    return partial(run_regard, "data")


def test_the_list_shows_presence_and_licence(run):
    code, out, err = run()
    assert code == 0, err
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert (
        "yes" in rows["tatoeba-sample"]
        and "CC BY 2.0" in rows["tatoeba-sample"]
        and "21,036" in rows["tatoeba-sample"]
    )
    assert " no " in rows["multi30k"] and "research" in rows["multi30k"]


def test_a_corpus_is_described(run):
    code, out, err = run("tatoeba-sample", "--split", "test", "--source", "de", "--target", "en", "-n", "2")
    assert code == 0, err
    for text in (
        "CC BY 2.0",
        "manythings.org",
        "all as the manifest names them",
        "449 rows; all usable",
        "words",
        "95 %",
    ):
        assert text in out
    assert out.count("\nde: ") + out.startswith("de: ") == 2 and out.count("\nen: ") == 2


def test_a_missing_corpus_lists_the_files_it_needs(run):
    code, out, err = run("wikitext-2")
    assert code == 0, err
    assert "none of 3 was found" in out and "train.txt valid.txt test.txt" in out and "CC BY-SA 3.0" in out
    code, out, err = run("wikitext-2", "--split", "test")
    assert code == 2 and "the corpus wikitext-2 is not in nowhere/wikitext-2; fetch it" in err


def test_own_files_are_described(tmp_path, run):
    (tmp_path / "a.en").write_bytes(b"one cat\n\nbad \xff\nlast\n")
    (tmp_path / "a.de").write_bytes(b"eine Katze\nzwei\ndrei\nletzte\n")
    code, out, err = run(tmp_path / "a.en", tmp_path / "a.de", "-n", "9")
    assert code == 0, err
    assert "4 rows; 1 not UTF-8; 1 empty on a side" in out
    assert "source: one cat\ntarget: eine Katze" in out
    code, out, err = run(tmp_path / "a.de", "-n", "1")
    assert code == 0 and "4 rows; all usable" in out and "text: eine Katze" in out


def test_json_lines_need_a_field(tmp_path, run):
    (tmp_path / "a.jsonl").write_text('{"text": "hello world"}\n{"other": 1}\n', encoding="utf-8")
    code, out, err = run(tmp_path / "a.jsonl", "--source", "text")
    assert code == 0, err
    assert "2 rows; 1 without the column or field" in out
    code, _, err = run(tmp_path / "a.jsonl")
    assert code == 2 and "--source" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("multi-30k",), "did you mean multi30k?"),
        (("nothing.tsv",), "there is no file nothing.tsv"),
        (("tatoeba-sample", "--split", "dev"), "has no split 'dev'; it has train, validation, test"),
        (("tatoeba-sample", "--source", "fr"), "no language 'fr'"),
        (("tatoeba-sample", "-n", "-1"), "-n"),
    ],
)
def test_wrong_input_is_an_error_of_one_sentence_and_exit_code_two(args, message, run):
    code, out, err = run(*args)
    assert code == 2
    assert message in err
    assert "Traceback" not in out + err


def test_different_line_counts_are_reported_with_both_numbers(tmp_path, run):
    Path(tmp_path / "a").write_text("x\n" * 3, encoding="utf-8")
    Path(tmp_path / "b").write_text("x\n" * 4, encoding="utf-8")
    code, _, err = run(tmp_path / "a", tmp_path / "b")
    assert code == 2 and "has 3 lines and" in err and "has 4;" in err


def test_a_table_shows_its_columns_and_labels_and_its_header_is_no_row(tmp_path, run):
    body = "".join(f"{'bad' if i % 3 else 'good'};a film, number {i}\n" for i in range(9))
    (tmp_path / "my.csv").write_text("stars;review\n" + body, encoding="utf-8")
    code, out, err = run(tmp_path / "my.csv", "-n", "1")
    assert code == 0, err
    assert (
        "my.csv: 2 columns separated by semicolons, a header; text = column 2 'review', label = column 1 "
        "'stars'" in out
    )
    assert (
        "9 rows; all usable" in out
        and "text: a film, number 0\nlabel: good" in out
        and "2 labels: bad 6, good 3" in out
    )
    code, _, err = run(tmp_path / "my.csv", "--source", "0", "--target", "1")
    assert code == 2 and "there is no column 0: columns are counted from 1" in err


def test_empty_labels_and_spaces_around_labels_are_not_counted_as_labels(tmp_path, run):
    body = "".join(f"a film number {i},{('good', ' good', 'bad', '')[i % 4]}\n" for i in range(12))
    (tmp_path / "my.csv").write_text("text,label\n" + body, encoding="utf-8")
    code, out, err = run(tmp_path / "my.csv", "-n", "0")
    assert code == 0, err
    assert "12 rows; 3 empty on a side" in out and "2 labels: good 6, bad 3" in out
    (tmp_path / "my.csv").write_text("text,label\n", encoding="utf-8")
    code, _, err = run(tmp_path / "my.csv")
    assert code == 2 and "has no rows, at most a header" in err
