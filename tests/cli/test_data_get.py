"""Tests of data.py: downloads, and the question on a terminal when a corpus is missing."""

import os
import sys
from contextlib import contextmanager

import pytest
import typer
from typer.testing import CliRunner

from regard.cli import data, train
from regard.cli.main import app, run
from regard.data import corpora
from regard.errors import DataError
from regard.interactions import ratings
from tests.data.file_server import entry, serving

ROWS = "".join(f"a {'fine' if i % 2 else 'dull'} film number {i}\t{i % 2}\n" for i in range(60)).encode()
FILES = dict.fromkeys(("train.tsv", "dev.tsv", "test.tsv"), ROWS)
SST2 = entry(FILES, {f"data/{name}": (ROWS[:-1], {name: ["end_last_line"]}) for name in FILES}) | {
    "task": "classify", "roles": {"train": "train", "validation": "dev", "test": "test"},
    "labels": {"0": "bad", "1": "good"},
    "sets": [{"split": name[:-4], "table": name, "columns": [1, 2], "rows": 60} for name in FILES],
}  # fmt: skip


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A manifest in which sst2 has sixty rows, and a server that has them."""
    monkeypatch.setattr(corpora, "_manifest", lambda: {"sst2": SST2})
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RANK", raising=False)
    with serving({f"/owner/name/c0ffee/data/{name}": ROWS[:-1] for name in FILES}) as server:
        monkeypatch.setenv("REGARD_MIRROR", server.url)
        yield server


@contextmanager
def terminal(monkeypatch, answer):
    """Connect stdin and stderr to a pseudo-terminal with a typed answer; return a function that reads the
    output.
    """
    pty = pytest.importorskip("pty")
    outer, inner = pty.openpty()
    os.write(outer, answer)
    with (
        os.fdopen(os.dup(inner), "r") as reads,
        os.fdopen(inner, "w") as writes,
        monkeypatch.context() as changed,
    ):
        changed.setattr(sys, "stdin", reads)
        changed.setattr(sys, "stderr", writes)
        yield lambda: os.read(outer, 10_000).decode()
    os.close(outer)


def test_downloaded_corpora_are_marked_in_the_list(server, capsys):
    data.command(["get", "sst2", "sst2"])
    assert "sst2 is in" in capsys.readouterr().out
    data.command(["get", "sst2"])
    assert "sst2 is already in" in capsys.readouterr().out
    data.command()
    assert "yes" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("sst2"))


def test_all_names_are_checked_before_anything_is_fetched(server):
    with pytest.raises(DataError, match="no corpus is called 'sst3'; did you mean sst2"):
        data.command(["get", "sst2", "sst3"])
    with pytest.raises(DataError, match="needs a name, such as `regard data get sst2`"):
        data.command(["get"])
    assert not server.requested


def test_yes_on_a_terminal_downloads_the_corpus_and_reads_it(server, monkeypatch, tmp_path, capsys):
    with terminal(monkeypatch, b"y\n") as shown:
        with pytest.raises(
            DataError, match=r"none of the 60 rows of .*/data/sst2/train\.tsv\.gz can be used"
        ):
            train.command("sst2", ["data.max_length=1"], dry_run=True)
        output = shown()
    assert (
        f"sst2 is not in {tmp_path / 'data' / 'sst2'}: 0.1 MB, licence: CC BY 4.0. Download it now? [y/N]"
        in output
    )
    assert len(server.requested) == 3 and capsys.readouterr().out == ""
    with terminal(monkeypatch, b"") as shown:
        data.offer({"corpus": "sst2"})  # present, so no question
    assert len(server.requested) == 3


def test_no_on_a_terminal_ends_with_the_error(server, monkeypatch):
    with (
        terminal(monkeypatch, b"n\n"),
        pytest.raises(DataError, match="fetch it with `regard data get sst2`"),
    ):
        train.command("sst2", dry_run=True)
    assert not server.requested


def test_no_question_without_a_terminal(server):
    with pytest.raises(DataError, match="fetch it with `regard data get sst2`"):
        train.command("sst2", dry_run=True)
    assert not server.requested


def test_no_question_under_torchrun(server, monkeypatch):
    with terminal(monkeypatch, b""):
        assert data.can_ask()
        monkeypatch.setenv("RANK", "0")
        assert not data.can_ask()


def test_ctrl_c_prints_how_to_resume_and_the_same_command_resumes(server, capsys):
    server.faults = [("ctrl-c", 1000)]
    with pytest.raises(typer.Exit) as stopped:
        data.command(["get", "sst2"])
    assert stopped.value.exit_code == 130
    assert "regard: stopped; run the same command again to resume" in capsys.readouterr().err
    data.command(["get", "sst2"])
    assert server.ranges[:2] == [None, "bytes=1000-"] and corpora.find("sst2").present()


def test_a_missing_movielens_names_the_download_command(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    with pytest.raises(DataError, match="fetch it with `regard data get movielens-latest-small`"):
        ratings.movielens_files("movielens-latest-small")


def test_a_corpus_without_parts_is_described_and_is_not_trained_on(monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    out = CliRunner().invoke(app, ["data", "cranfield"]).output
    assert (
        "none of 3 was found; `regard data get cranfield` downloads them (1.8 MB)" in out
        and "queries.xml" in out
    )
    error = CliRunner().invoke(app, ["train", "sst2", "data.corpus=cranfield", "--dry-run"]).exception
    assert isinstance(error, DataError) and "cranfield is for search, not for training" in str(error)


def test_the_help_of_data_has_examples():
    out = CliRunner().invoke(app, ["data", "--help"], env={"COLUMNS": "200"}).output
    assert "regard data get sst2 multi30k" in out and "REGARD_MIRROR" in out and "HTTPS_PROXY" in out


def test_a_mistake_is_an_error_of_one_sentence_and_exit_code_two(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["regard", "data", "get", "europarl-en-de"])
    with pytest.raises(SystemExit) as ended:
        run()
    output = capsys.readouterr().err
    assert ended.value.code == 2
    assert output.startswith("regard: europarl-en-de cannot be fetched: ") and output.count("\n") == 1
