"""Tests of main.py, help_format.py, cost.py, demo.py and recipes.py: exit codes, errors, help."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text
from typer import rich_utils
from typer.testing import CliRunner

import regard
from regard.cli import main as main_module
from regard.cli.help_format import help_text
from regard.cli.main import PANELS, app

FOLDER = Path(main_module.__file__).parent
SHARED = {
    "__init__",
    "main",
    "help_format",
    "option_groups",
    "jobs",
    "document_options",
    "pictures",
    "weight_matrix",
    "demo_bundled",
}


def test_a_process_of_its_own_prints_the_version():
    command = [sys.executable, "-m", "regard", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"regard {regard.__version__}\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_under_standard_output_is_one_sentence():
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "regard", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == 2
    assert done.stderr.decode() == "regard: the disk is full; free some space and run the command again\n"


def test_output_is_utf8_in_an_ascii_locale():
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "regard", "translate", "Où est la gare ?", "--to", "en", "--show"]
    done = subprocess.run(command, capture_output=True, env=os.environ | ascii_locale)
    assert done.returncode == 0, done.stderr
    assert "station" in done.stdout.decode() and "▒" in done.stdout.decode()


def test_the_help_names_the_commands(run_regard):
    code, out, _ = run_regard("--help")
    assert code == 0
    assert "cost" in out
    assert "demo" in out


def test_every_command_is_a_file_and_in_a_panel():
    files = {path.stem for path in FOLDER.glob("*.py")} - SHARED
    files = {name.rstrip("_") for name in files}
    assert files == {name for commands in PANELS.values() for name in commands}
    assert all(command.rich_help_panel in PANELS for command in app.registered_commands)


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda command: command.name)
def test_the_help_of_a_command_is_plain_and_has_an_example(command):
    help = command.callback.__doc__
    assert help and help.splitlines()[0].rstrip().endswith((".", ":")), command.name
    if command.name not in ("demo", "runs", "recipes", "bleu"):
        assert f"regard {command.name}" in help, command.name


NEEDS_FILES = re.compile(r"runs/| -i |\||minilm|gpt2|\.(npy|index|txt|csv|yaml|gz)\b|FOLDER")
QUICK = ("align", "classify", "faithfulness", "generate", "models", "tag", "translate")


def examples(command):
    lines = inspect.cleandoc(command.callback.__doc__).splitlines()
    return [line.strip() for line in lines if line.startswith("    ")]


@pytest.mark.parametrize("name", QUICK)
def test_examples_that_need_no_file_run_without_a_model_of_ones_own(name, run_regard, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (command,) = (command for command in app.registered_commands if command.name == name)
    chosen = [example for example in examples(command) if not NEEDS_FILES.search(example)]
    assert chosen
    for example in chosen:
        code, out, err = run_regard(*shlex.split(example, comments=True)[1:])
        assert code == 0 and out + err, (example, err)


@pytest.fixture(scope="module")
def help_pages():
    """The help of `regard` and of every command on a terminal of 80 columns, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setenv("TERMINAL_WIDTH", "80")
        patch.setattr(rich_utils, "MAX_WIDTH", 80)
        names = [command.name for command in app.registered_commands]
        return {name: CliRunner().invoke(app, [*name.split(), "--help"]).output for name in ["", *names]}


def test_the_help_shows_flags_without_a_type_and_arguments_with_one_pair_of_brackets(help_pages):
    assert re.search(r"--strict +Stop at a line", help_pages["translate"])
    for name, page in help_pages.items():
        assert "<bool>" not in page, name
        assert "[[" not in page, name


def test_examples_of_the_help_fit_80_columns_and_keep_their_brackets(help_pages):
    for command in app.registered_commands:
        printed = {line.strip() for line in help_pages[command.name].splitlines()}
        for example in examples(command):
            assert len(example) <= 72, (command.name, example)
            assert example in printed, (command.name, example)
    assert "A sentence with [nouns]" in help_pages["probe"]


def test_lines_of_a_paragraph_are_joined_and_examples_stay_indented():
    text = help_text("First\nparagraph.\n\nExamples:\n\n    regard data [x]\n    regard runs")
    shown = Text.from_markup(inspect.cleandoc(text)).plain
    assert shown == "First paragraph.\n\nExamples:\n\n    regard data [x]\n    regard runs"


def test_cost_prints_quoted_counted_and_measured_numbers(run_regard):
    code, out, err = run_regard("cost", "-T", "64", "-M", "16", "-K", "8", "--repeat", "1")
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
    assert "quoted: the formula in Schmidt-Thieme's lecture" in out


def test_cost_by_length_prints_and_draws_times(tmp_path, run_regard):
    picture = tmp_path / "times.svg"
    args = ("cost", "--lengths", "8,16", "-M", "8", "-K", "4", "--repeat", "1", "--picture", str(picture))
    code, out, err = run_regard(*args)
    assert code == 0, err
    assert "recurrence" in out and "restricted" in out
    assert "Time of one layer, M = 8" in picture.read_text(encoding="utf-8")


@pytest.mark.slow
def test_demo_learns_to_reverse_and_shows_its_attention(run_regard):
    code, out, err = run_regard("demo", "regard", "--train", "--steps", "400", "--no-translator")
    assert code == 0, err
    assert "'May 5th 2000'" in out
    assert "regard → drager" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("demo", "hello8"), "1 to 16 letters a-z, got 'hello8'"),
        (("cost", "-T", "1"), "-T"),
        (("cots",), "cots"),
        (("cost", "--dim", "x"), "--dim"),
        (("cost", "--lengths", "8,x"), "got 'x'"),
        (("cost", "--picture", "times.svg"), "add --lengths"),
        (("cost", "--lengths", "8", "--picture", "times.txt"), "ends in .svg"),
    ],
)
def test_bad_input_is_an_error_of_one_sentence_and_exit_code_two(args, message, run_regard):
    code, out, err = run_regard(*args)
    assert code == 2
    assert message in err
    assert "Traceback" not in err + out
