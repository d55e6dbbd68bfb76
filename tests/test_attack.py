"""The soak scripts work: `python -m benchmarks.attack --quick` finds no failure and prints its table."""

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.attack.__main__ import arguments
from benchmarks.attack.commands import CommandResult
from benchmarks.attack.folders import find_problem
from benchmarks.attack.outcome import Outcome, Plan, table

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=pytest.mark.slow) for part in ("calls", "kills", "requests", "folders")],
)
def test_a_quick_attack_finds_nothing(part):
    command = [sys.executable, "-m", "benchmarks.attack", "--quick", "--part", part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 1\n| attack")


def test_a_failure_is_one_line_with_the_command_that_repeats_it():
    outcome = Outcome("wrong calls", "calls", count=3)
    outcome.failed(7, "TypeError:\n  no", 5)
    expected = "wrong calls: TypeError: no  [python -m benchmarks.attack --part calls --seed 5 --only 7]"
    assert outcome.failures == [expected]
    assert table([outcome]).splitlines()[-1].split("|")[1:4] == [" wrong calls ", " 3        ", " 1        "]
    plan = Plan(5, False, Path(), only=7)
    assert (
        plan.numbers(100) == [7]
        and plan.draw("calls", 7).random() == Plan(5, True, Path()).draw("calls", 7).random()
    )


def test_a_changed_folder_must_be_refused_in_a_sentence_or_change_nothing():
    full = CommandResult(0, "a dog", "")
    assert (
        find_problem(CommandResult(2, "", "regard: config.json is damaged, so copy it again\n"), full) is None
    )
    assert find_problem(CommandResult(0, "a dog", ""), full) is None
    assert "without an error" in find_problem(CommandResult(0, "a cat", ""), full)
    assert "traceback" in find_problem(CommandResult(1, "", "Traceback (most recent call last)"), full)
    assert "exit code 1" in find_problem(
        CommandResult(1, "", "regard: config.json is damaged, so copy it again\n"), full
    )


def test_a_case_needs_its_part(capsys):
    with pytest.raises(SystemExit):
        arguments(["--only", "3"])
    assert "--only N needs --part" in capsys.readouterr().err
