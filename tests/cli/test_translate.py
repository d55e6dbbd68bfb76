"""Tests of translate.py and jobs.py: files, pipes, kills, full disks, wrong input."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from regard.cli import translate
from regard.decoding.limits import Limits
from regard.errors import DataError, FolderError, OptionError, RegardError
from regard.models.folder import load
from regard.pipelines.job import fingerprint
from regard.pipelines.translate import translate as search
from regard.pipelines.translate_file import TranslateOptions
from tests import forked
from tests.decoding.model_folders import language_model, translator

# A process whose chunks are a few lines, so that it can be stopped between many of them.
SMALL_CHUNKS = (
    "import sys; from regard.pipelines import input as source; source.CHUNK_LINES = 8; "
    "from regard.cli.main import run; run()"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return translator(tmp_path_factory.mktemp("models") / "translator")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, folder):
    """Lines of words, their file, and their translations."""
    draw = random.Random(1)
    word = lambda: "".join(draw.choices("abcdefghij", k=draw.randint(1, 6)))  # noqa: E731
    lines = [" ".join(word() for _ in range(draw.randint(0, 4))) for _ in range(240)]
    path = tmp_path_factory.mktemp("texts") / "in.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path, "".join(f"{line}\n" for line in search(lines, load(folder))).encode()


@pytest.fixture
def regard(run_command):
    return partial(run_command, translate.command)


def chunked(*args):
    return forked.Popen("translate", *args, code=SMALL_CHUNKS)


def wait_for_lines(process, journal, count):
    """Wait until the journal counts this many lines."""
    deadline = time.monotonic() + 60
    while not journal.exists() or journal.read_bytes().count(b'"lines"') * 8 < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_text_on_the_command_line_is_translated(folder, regard):
    one, two = search(["hello world", "b"], load(folder))
    assert regard("hello world", "b", "--model", folder) == (0, f"{one}\n{two}\n", "")
    assert regard("hello world\nb", "--model", folder) == (0, f"{one}\n{two}\n", "")


def test_files_of_every_kind_give_files_of_every_kind(folder, regard, tmp_path):
    one, two = map(str, search(["hello world", "b"], load(folder)))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"hello world\n"))
    (tmp_path / "b.tsv").write_text("1\thello world\n2\tb\n", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"t": "hello world"}\n', encoding="utf-8")
    (tmp_path / "d.txt").write_text("b\n", encoding="utf-8")
    assert regard("-i", tmp_path / "a.txt.gz", tmp_path / "d.txt", "--model", folder)[1] == f"{one}\n{two}\n"
    assert (
        regard(
            "-i", tmp_path / "a.txt.gz", "-i", tmp_path / "d.txt", "-o", tmp_path / "o.gz", "--model", folder
        )[0]
        == 0
    )
    assert gzip.decompress((tmp_path / "o.gz").read_bytes()).decode() == f"{one}\n{two}\n"
    assert regard("-i", tmp_path / "b.tsv", "--column", "2", "--model", folder)[1] == f"{one}\n{two}\n"
    regard("-i", tmp_path / "b.tsv", "--column", "2", "-o", tmp_path / "o.tsv", "--model", folder)
    assert (tmp_path / "o.tsv").read_text(encoding="utf-8") == f"1\thello world\t{one}\n2\tb\t{two}\n"
    regard("-i", tmp_path / "c.jsonl", "--field", "t", "-o", tmp_path / "o.jsonl", "--model", folder)
    assert json.loads((tmp_path / "o.jsonl").read_text(encoding="utf-8"))["translation"] == one
    assert regard("-i", tmp_path / "c.jsonl", "--field", "t", "--model", folder)[1] == f"{one}\n"


def test_an_empty_file_gives_an_empty_file(folder, regard, tmp_path):
    (tmp_path / "none").write_bytes(b"")
    for name in ("o", "o.gz"):
        assert regard("-i", tmp_path / "none", "-o", tmp_path / name, "--model", folder)[0] == 0
    assert (tmp_path / "o").read_bytes() == gzip.decompress((tmp_path / "o.gz").read_bytes()) == b""


def test_n_best_json_alignment_and_matrix_are_printed_on_request(folder, regard, tmp_path):
    record = json.loads(
        regard("hello world", "--json", "--beam", "3", "--nbest", "2", "--align", "--model", folder)[1]
    )
    assert record["source"] == "hello world"
    assert [item["text"] for item in record["nbest"]] == [
        h.text for h in search(["hello world"], load(folder), beam=3, nbest=2)[0].hypotheses
    ]
    text, links = regard("hello world", "--align", "--model", folder)[1].rstrip("\n").split("\t")
    assert links == record["alignment"]
    regard("hello world", "-o", tmp_path / "o", "--align-to", tmp_path / "o.align", "--model", folder)
    assert (tmp_path / "o.align").read_text(encoding="utf-8") == f"{links}\n"
    shown = regard("hello world", "--show", "--model", folder)[1].splitlines()
    assert shown[0] == text
    assert any("█" in line or "▓" in line or "▒" in line or "░" in line for line in shown)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (["x", "--model", "{folder}/none"], FolderError, r"there is no folder .*none"),
        (["x", "--model", "{lm}"], FolderError, "is a language model"),
        (["x", "--model", "{tmp}"], FolderError, "has no config.json"),
        (["-i", "{tmp}/none", "--model", "{folder}"], DataError, "there is no file .*none"),
        (["x", "-o", "{tmp}/none/o", "--model", "{folder}"], OptionError, "its folder does not exist"),
        (["x", "--nbest", "2", "--model", "{folder}"], OptionError, "add --beam 2"),
        (
            ["x", "--nbest", "2", "--beam", "2", "-o", "{tmp}/o.tsv", "--model", "{folder}"],
            OptionError,
            "a table has one translation for each row",
        ),
        (
            ["x", "--sample", "--beam", "2", "--model", "{folder}"],
            OptionError,
            "--sample and --beam exclude each other",
        ),
        (
            ["x", "--top-k", "3", "--model", "{folder}"],
            OptionError,
            "--top-k has an effect only with --sample",
        ),
        (["x", "--column", "1", "--field", "t", "--model", "{folder}"], OptionError, "give one of them"),
        (["x", "--on", "slurm", "--model", "{folder}"], OptionError, "--on must be ray, got 'slurm'"),
        (["x", "--precision", "int4", "--model", "{folder}"], OptionError, "got 'int4'"),
        (
            ["x", "--attention", "{tmp}/o.txt", "--model", "{folder}"],
            OptionError,
            r"ends in \.jsonl or \.npz",
        ),
        (
            ["x", "-o", "{tmp}/o", "--align-to", "{tmp}/o", "--model", "{folder}"],
            OptionError,
            "two outputs have the same file",
        ),
        (
            ["-i", "{tmp}/bad.txt", "-o", "{tmp}/bad.txt", "--model", "{folder}"],
            OptionError,
            "is both input and output",
        ),
        (
            ["-i", "{tmp}/bad.txt", "--strict", "--model", "{folder}"],
            DataError,
            r"line 2 of .*bad\.txt is not UTF-8",
        ),
        (
            ["x", "--min-length", "9", "--max-length", "3", "--model", "{folder}"],
            OptionError,
            "min_length 9 is more than max_length 3",
        ),
    ],
)
def test_invalid_options_are_errors_of_one_sentence_before_any_work(
    folder, regard, tmp_path, args, error, message
):
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffd\n")
    where = {
        "folder": folder,
        "tmp": tmp_path,
        "lm": language_model(tmp_path / "lm") if "{lm}" in args else "",
    }
    with pytest.raises(error, match=message) as raised:
        regard(*(arg.format(**where) for arg in args))
    assert isinstance(raised.value, RegardError)
    assert "\n" not in str(raised.value)
    assert set(os.listdir(tmp_path)) <= {"bad.txt", "lm"}


def test_bad_utf8_is_replaced_and_reported(folder, regard, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffd\n\n")
    code, out, err = regard("-i", tmp_path / "bad.txt", "--model", folder)
    assert (code, out.count("\n")) == (0, 3)
    assert err == "regard: 1 line is not UTF-8 (line 2); invalid bytes become �\n"


def test_a_hundred_thousand_characters_in_a_line_are_one_line_of_output(folder, regard, tmp_path):
    lines = ["x" * 100_000, "b", "I see. " * 14_000 + "\0\x1b\u2028\x85"]
    (tmp_path / "long.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    code, out, _ = regard("-i", tmp_path / "long.txt", "--max-length", "5", "--model", folder)
    result = out.split("\n")
    (sentence,) = search(["I see."], load(folder), limits=Limits(max_length=5))
    assert (code, len(result), result[3]) == (0, 4, "")
    assert len(result[0]) > 2_500  # every 40 characters gave at least one
    assert result[2].startswith(" ".join([sentence] * 14_000))


def test_a_job_killed_at_any_moment_resumes_to_identical_bytes(folder, corpus, tmp_path):
    path, expected = corpus
    for lines in (1, 120):
        process = chunked("-i", path, "-o", tmp_path / "o", "--model", folder)
        wait_for_lines(process, tmp_path / "o.progress", lines)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert sorted(os.listdir(tmp_path)) == ["o.part", "o.progress"]
    process = chunked("-i", path, "-o", tmp_path / "o", "--model", folder)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "resuming after" in err
    assert (tmp_path / "o").read_bytes() == expected
    assert os.listdir(tmp_path) == ["o"]


def test_an_interrupt_keeps_the_output_and_prints_how_to_resume(folder, corpus, tmp_path, regard):
    path, _ = corpus
    process = chunked("-i", path, "-o", tmp_path / "o", "--model", folder)
    wait_for_lines(process, tmp_path / "o.progress", 40)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"resume with: regard translate -i {path} -o {tmp_path}/o --model {folder}" in err
    assert "Traceback" not in err
    with pytest.raises(OptionError, match="o was started with another beam"):
        regard("-i", path, "-o", tmp_path / "o", "--beam", "2", "--model", folder)


@pytest.mark.slow
def test_a_full_disk_is_an_error_of_one_sentence_and_the_job_resumes_later(folder, corpus, tmp_path):
    path, expected = corpus
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True
    ).returncode:
        pytest.skip("only root can make a small disk")
    try:
        (disk / "filler").write_bytes(
            b"x" * 57_344
        )  # two pages are left: one for the journal, one for a part of the text
        process = chunked("-i", path, path, "-o", disk / "o", "--model", folder)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2, err
        assert "the disk of" in err
        assert "is full" in err
        assert "Traceback" not in err
        (disk / "filler").unlink()
        assert chunked("-i", path, path, "-o", disk / "o", "--model", folder).wait(60) == 0
        assert (disk / "o").read_bytes() == expected * 2
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_closed_pipe_is_not_an_error(folder, corpus):
    path, expected = corpus
    command = [sys.executable, "-c", SMALL_CHUNKS, "translate", "-i", path, "--model", folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == expected.split(b"\n")[0] + b"\n"
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""


def test_standard_input_is_answered_line_by_line(folder):
    one, two = search(["hello world", "b"], load(folder))
    process = forked.Popen("translate", "--model", folder, stdin=subprocess.PIPE)
    process.stdin.write("hello world\n")
    process.stdin.flush()
    assert process.stdout.readline() == f"{one}\n"
    out, err = process.communicate("b\n", timeout=60)
    assert (process.returncode, out, err) == (0, f"{two}\n", "")


def test_another_column_is_another_job(folder, regard, tmp_path):
    (tmp_path / "in.tsv").write_text("a\tb\n", encoding="utf-8")
    about = json.dumps(
        {
            "job": TranslateOptions(column="1", separator="\t", output=str(tmp_path / "o")).about(
                fingerprint([folder])
            )
        }
    )
    (tmp_path / "o.progress").write_text(f"{about}\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"another column \(1, now 2\)"):
        regard("-i", tmp_path / "in.tsv", "--column", "2", "-o", tmp_path / "o", "--model", folder)
    assert regard("-i", tmp_path / "in.tsv", "--column", "1", "-o", tmp_path / "o", "--model", folder)[0] == 0
