"""Tests of classify.py and jobs.py: files of every kind, pipes, kills, wrong input."""

import csv
import gzip
import io
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from regard.cli import classify
from regard.errors import DataError, FolderError, OptionError, RegardError
from regard.models.classifier import ClassifierEnsemble
from regard.models.folder import load
from regard.pipelines.classify import classify as label
from regard.pipelines.classify import word_attention
from tests import forked
from tests.decoding.model_folders import classifier, translator

# A process whose chunks are a few lines.
CHUNKS = (
    "from regard.pipelines import input as source; source.CHUNK_LINES = {lines}; "
    "from regard.cli.main import run; run()"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return classifier(tmp_path_factory.mktemp("models") / "classifier")


@pytest.fixture
def regard(run_command):
    return partial(run_command, classify.command)


def line(result, top=1):
    pairs = list(result.probabilities.items())[:top]
    cells = [cell for name, p in pairs for cell in (name, f"{p:.4f}")]
    return "\t".join([str(result), *cells[1:]]) + "\n" if cells else "\n"


def test_a_text_on_the_command_line_is_labelled_with_its_probability(folder, regard):
    one, two = label(["hello world", "b"], load(folder))
    assert regard("hello world", "b", "--model", folder) == (0, line(one) + line(two), "")
    assert regard("hello world\n\nb", "--model", folder) == (0, f"{line(one)}\n{line(two)}", "")
    assert regard("hello world", "--top", "2", "--model", folder) == (0, line(one, 2), "")
    assert regard("hello world", "--top", "99", "--model", folder) == (0, line(one, 3), "")


def test_an_ensemble_is_classified_with_and_its_attention_is_refused(folder, tmp_path, regard):
    other = classifier(tmp_path / "other", seed=4)
    ensemble = ClassifierEnsemble([load(folder), load(other)])
    texts = ["hello world", "b"]
    expected = "".join(line(result, 3) for result in label(texts, ensemble))
    options = ("--top", "3", "--model", folder)
    assert regard(*texts, *options, "--with", other) == (0, expected, "")
    assert regard(*texts, *options)[1] != expected
    for attention in (["--attention"], ["--picture", tmp_path / "x.svg"]):
        with pytest.raises(OptionError, match="attention is that of one model, got an ensemble"):
            regard("b", "--model", folder, "--with", other, *attention)
    with pytest.raises(FolderError, match="classifying takes a classifier"):
        regard("b", "--model", folder, "--with", translator(tmp_path / "translator"))
    with pytest.raises(OptionError, match="different labels"):
        regard("b", "--model", folder, "--with", classifier(tmp_path / "third", labels=("a", "b", "c")))


def test_below_the_threshold_the_label_is_left_out(folder, regard):
    (one,) = label(["hello world"], load(folder))
    assert (
        regard("hello world", "--threshold", "0.9999", "--model", folder)[1] == f"\t{one.probability:.4f}\n"
    )
    record = json.loads(regard("hello world", "--threshold", "0.9999", "--jsonl", "--model", folder)[1])
    assert record["predicted"] is None
    assert record["probability"] == pytest.approx(one.probability, abs=1e-6)


def test_files_of_every_kind_give_files_of_every_kind(folder, regard, tmp_path):
    one, two = label(["hello world", "b"], load(folder))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"hello world\n"))
    (tmp_path / "d.txt.xz").write_bytes(lzma.compress(b"b\n"))
    assert regard("-i", tmp_path / "a.txt.gz", tmp_path / "d.txt.xz", "--model", folder)[1] == line(
        one
    ) + line(two)
    assert (
        regard(
            "-i",
            tmp_path / "a.txt.gz",
            "-i",
            tmp_path / "d.txt.xz",
            "-o",
            tmp_path / "o.gz",
            "--model",
            folder,
        )[0]
        == 0
    )
    assert gzip.decompress((tmp_path / "o.gz").read_bytes()).decode() == line(one) + line(two)

    (tmp_path / "b.tsv").write_text("1\thello world\n2\tb\n", encoding="utf-8")
    assert regard("-i", tmp_path / "b.tsv", "--column", "2", "--model", folder)[1] == line(one) + line(two)
    regard("-i", tmp_path / "b.tsv", "--column", "2", "-o", tmp_path / "o.tsv", "--model", folder)
    assert (tmp_path / "o.tsv").read_text(encoding="utf-8") == f"1\thello world\t{line(one)}2\tb\t{line(two)}"

    (tmp_path / "c.jsonl").write_text('{"q": "hello world", "label": "gold"}\n\n', encoding="utf-8")
    regard(
        "-i",
        tmp_path / "c.jsonl",
        "--field",
        "q",
        "-o",
        tmp_path / "o.jsonl",
        "--top",
        "2",
        "--model",
        folder,
    )
    first, second = (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(first)
    assert (record["q"], record["label"], record["predicted"]) == ("hello world", "gold", one)
    assert list(record["probabilities"]) == list(one.probabilities)[:2]
    assert json.loads(second) == {"predicted": None, "probability": None, "probabilities": {}}


def test_a_table_with_named_columns_keeps_them_and_gets_two_more(folder, regard, tmp_path):
    texts = ["hello, world", 'a "b"\nc', ""]
    labels = label(texts, load(folder))
    with (tmp_path / "in.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "review"], *([str(i), text] for i, text in enumerate(texts))])
    assert regard("-i", tmp_path / "in.csv", "--column", "review", "--model", folder)[1] == "".join(
        map(line, labels)
    )
    regard("-i", tmp_path / "in.csv", "--column", "review", "-o", tmp_path / "o.csv", "--model", folder)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "o.csv").read_text(encoding="utf-8"), newline="")))
    assert [row["review"] for row in rows] == texts
    assert [row["predicted"] for row in rows] == [str(item) for item in labels]
    assert [row["probability"] for row in rows] == [
        f"{item.probability:.4f}" if item else "" for item in labels
    ]
    regard(
        "-i",
        tmp_path / "in.csv",
        "--column",
        "review",
        "-o",
        tmp_path / "o.tsv",
        "--top",
        "2",
        "--model",
        folder,
    )
    first, *others = (tmp_path / "o.tsv").read_text(encoding="utf-8").splitlines()
    assert first == "id\treview\tpredicted\tprobability\tpredicted_2\tprobability_2"
    assert [len(item.split("\t")) for item in others] == [6, 6, 6]
    regard("-i", tmp_path / "in.csv", "--column", "review", "-o", tmp_path / "o.jsonl", "--model", folder)
    records = [json.loads(item) for item in (tmp_path / "o.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(item["id"], item["review"], item["predicted"] or "") for item in records] == [
        (str(i), text, str(item)) for i, (text, item) in enumerate(zip(texts, labels, strict=True))
    ]
    (tmp_path / "t.tsv").write_text(
        "text\tid\nhello, world\t1\n", encoding="utf-8"
    )  # a column called text needs no name
    assert regard("-i", tmp_path / "t.tsv", "--model", folder)[1] == line(labels[0])
    assert regard("-i", tmp_path / "t.tsv", "--column", "1", "--header", "--model", folder)[1] == line(
        labels[0]
    )
    assert regard("-i", tmp_path / "t.tsv", "--column", "1", "--model", folder)[1] == line(
        labels[0]
    )  # as training reads it


def test_attention_shows_each_word_with_its_weight(folder, regard, monkeypatch):
    (one,), (attended,) = label(["hello world"], load(folder)), word_attention(["hello world"], load(folder))
    shown = " ".join(
        f"{word}({weight:.2f})" for word, weight in zip(attended.words, attended.weights, strict=True)
    )
    assert regard("--attention", "hello world", "--model", folder)[1] == f"{line(one)}  {shown}\n"
    assert regard("--attention", "", "--model", folder)[1] == "\n"
    record = json.loads(regard("--attention", "--jsonl", "hello world", "--model", folder)[1])
    assert [word for word, _ in record["attention"]] == ["hello", "world"]
    assert [weight for _, weight in record["attention"]] == pytest.approx(attended.weights, abs=1e-6)
    monkeypatch.setattr("regard.cli.weight_matrix.shows_color", lambda stream: True)
    assert "\x1b[38;5;196m" in regard("--attention", "hello \x1b[2J world", "--model", folder)[1]
    assert "\x1b[2J" not in regard("--attention", "hello \x1b[2J world", "--model", folder)[1]


def test_an_empty_file_gives_an_empty_file(folder, regard, tmp_path):
    (tmp_path / "none").write_bytes(b"")
    for name in ("o", "o.gz"):
        assert regard("-i", tmp_path / "none", "-o", tmp_path / name, "--model", folder)[0] == 0
    assert (tmp_path / "o").read_bytes() == gzip.decompress((tmp_path / "o.gz").read_bytes()) == b""


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (["x", "--model", "{tmp}/none"], FolderError, r"there is no folder .*none"),
        (
            ["x", "--model", "{translator}"],
            FolderError,
            "is a translator, and classifying takes a classifier",
        ),
        (["-i", "{tmp}/none", "--model", "{folder}"], DataError, "there is no file .*none"),
        (["x", "-o", "{tmp}/none/o", "--model", "{folder}"], OptionError, "its folder does not exist"),
        (["x", "--column", "1", "--field", "t", "--model", "{folder}"], OptionError, "give one of them"),
        (
            ["-i", "{tmp}/in.tsv", "--column", "review", "--model", "{folder}"],
            DataError,
            r"line 1 of .*in\.tsv names no column 'review'; it has",
        ),
        (["-i", "{tmp}/in.tsv", "--model", "{folder}"], DataError, "names no column 'text'"),
        (
            ["-i", "{tmp}/in.tsv", "--column", "7", "--model", "{folder}"],
            DataError,
            r"line 1 of .*in\.tsv has 2 columns and no column 7",
        ),
        (
            ["-i", "{tmp}/in.tsv", "--column", "0", "--model", "{folder}"],
            DataError,
            "there is no column 0: columns are counted from 1",
        ),
        (
            ["-i", "{tmp}/in.tsv", "{tmp}/bad.txt", "--model", "{folder}"],
            OptionError,
            r"files of different kinds \(\.tsv, \.txt\)",
        ),
        (["--column", "review", "--model", "{folder}"], OptionError, "its column must be a number"),
        (
            ["-i", "{tmp}/in.jsonl", "--model", "{folder}"],
            DataError,
            r"line 1 of .*in\.jsonl has no text in the field 'text'; check --field",
        ),
        (
            ["-i", "{tmp}/in.tsv", "--column", "1", "-o", "{tmp}/in.tsv", "--model", "{folder}"],
            OptionError,
            "is both input and output",
        ),
        (
            ["x", "--attention", "-o", "{tmp}/o", "--model", "{folder}"],
            OptionError,
            "shown on the terminal or written as JSON",
        ),
        (["x", "--attention", "--model", "{plain}"], OptionError, "this model has no attention"),
        (
            ["-i", "{tmp}/bad.txt", "--strict", "--model", "{folder}"],
            DataError,
            r"line 2 of .*bad\.txt is not UTF-8",
        ),
    ],
)
def test_invalid_options_are_errors_of_one_sentence_before_any_work(
    folder, regard, tmp_path, args, error, message
):
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffd\n")
    (tmp_path / "in.tsv").write_text("id\tq\n1\tx\n", encoding="utf-8")
    (tmp_path / "in.jsonl").write_text('{"q": "x"}\n', encoding="utf-8")
    made = {
        "{translator}": lambda: translator(tmp_path / "other"),
        "{plain}": lambda: classifier(tmp_path / "other", encoder="text-cnn", pooling="max"),
    }
    args = [made[arg]() if arg in made else arg.format(folder=folder, tmp=tmp_path) for arg in args]
    with pytest.raises(error, match=message) as raised:
        regard(*args)
    assert isinstance(raised.value, RegardError)
    assert "\n" not in str(raised.value)
    assert set(os.listdir(tmp_path)) <= {"bad.txt", "in.tsv", "in.jsonl", "other"}


def test_bad_utf8_is_replaced_and_reported(folder, regard, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffd\n\n")
    code, out, err = regard("-i", tmp_path / "bad.txt", "--model", folder)
    assert (code, out.count("\n")) == (0, 3)
    assert err == "regard: 1 line is not UTF-8 (line 2); invalid bytes become �\n"


def test_truncated_texts_are_reported(tmp_path, regard):
    encoder = {
        "kind": "transformer",
        "layers": 1,
        "heads": 2,
        "inner": 32,
        "position": "learned",
        "max_positions": 6,
    }
    made = classifier(tmp_path / "m", encoder=encoder, pooling="mean")
    code, out, err = regard("abcdefgh", "abc", "--model", made)
    assert (code, len(out.splitlines())) == (0, 2)
    assert err == "regard: 1 text was truncated to the model's maximum length\n"


@pytest.mark.slow
def test_a_job_killed_at_any_moment_resumes_to_identical_bytes(folder, tmp_path):
    draw = random.Random(1)
    texts = [
        " ".join(draw.choices(["good", "bad", "day", "of", "all"], k=draw.randint(0, 6)))
        for _ in range(20_000)
    ]
    (tmp_path / "in.tsv").write_text("".join(f"{text}\n" for text in ["text", *texts]), encoding="utf-8")
    args, out = ("-i", tmp_path / "in.tsv", "-o", tmp_path / "o.tsv", "--model", folder), tmp_path / "o.tsv"
    assert forked.run("classify", *args).returncode == 0
    expected = out.read_bytes()
    assert expected.count(b"\n") == 20_001
    out.unlink()
    process = forked.Popen("classify", *args, code=CHUNKS.format(lines=64))
    deadline = time.monotonic() + 60
    journal = tmp_path / "o.tsv.progress"
    while not journal.exists() or journal.read_bytes().count(b'"lines"') < 3:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not out.exists()
    done = forked.run("classify", *args)
    assert done.returncode == 0, done.stderr
    assert "resuming after" in done.stderr
    assert out.read_bytes() == expected


def test_standard_input_is_answered_line_by_line(folder):
    one, two = label(["hello world", "b"], load(folder))
    process = forked.Popen("classify", "--model", folder, stdin=subprocess.PIPE)
    process.stdin.write("hello world\n")
    process.stdin.flush()
    assert process.stdout.readline() == line(one)
    out, err = process.communicate("b\n", timeout=60)
    assert (process.returncode, out, err) == (0, line(two), "")


def test_a_closed_pipe_is_not_an_error(folder, tmp_path):
    (tmp_path / "in.txt").write_text("b\n" * 20_000, encoding="utf-8")  # more than the buffer of a pipe
    args = ["classify", "-i", tmp_path / "in.txt", "--model", folder]
    command = [sys.executable, "-c", CHUNKS.format(lines=512), *args]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline().decode() == line(*label(["b"], load(folder)))
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""


def test_the_help_has_examples(regard):
    out = regard("--help")[1]
    assert 'regard classify "a film to remember" --model runs/sst2' in out
    assert "--threshold" in out
