"""The command line as a user meets it: real processes, exit codes and one-sentence errors."""

import subprocess
import sys

import pytest

import regard


def run(*args):
    done = subprocess.run(
        [sys.executable, "-m", "regard", *args], capture_output=True, text=True, encoding="utf-8", timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def test_version_and_help():
    assert run("--version")[1].strip() == f"regard {regard.__version__}"
    code, out, _ = run("--help")
    assert code == 0
    assert "cost" in out
    assert "demo" in out


def test_cost_prints_quoted_beside_counted_beside_measured():
    code, out, err = run("cost", "-T", "64", "-M", "16", "-K", "8", "--repeat", "1")
    assert code == 0, err
    for text in (
        "convolution",
        "recurrence",
        "attention",
        "restricted attention",
        "KM²",
        "3M²",
        "TKM",
        "T/K",
    ):
        assert text in out
    assert "3TM² = 49,152" in out.replace("\n", " ")
    assert "2T/K = 16" in out.replace("\n", " ")
    assert "only for K > 3" in out.replace("\n", " ")


@pytest.mark.slow
def test_demo_learns_to_reverse_and_shows_where_it_looks():
    code, out, err = run("demo", "regard", "--steps", "400", "--no-translator")
    assert code == 0, err
    assert "'May 5th 2000'" in out
    assert "regard → drager" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("demo", "hello8"), "1 to 16 letters a-z, got 'hello8'"),
        (("cost", "-T", "1"), "-T"),
        (("cots",), "cots"),
        (("cost", "--dim", "x"), "--dim"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(args, says):
    code, out, err = run(*args)
    assert code == 2
    assert says in err
    assert "Traceback" not in err + out
