"""Exercises and their checks: `regard lessons check 5 answer.py`.

The file checks/NN.py of a lesson has a function per exercise under `@exercise`. It receives
the reader's object of the same name and either returns one sentence that confirms it or raises `WrongAnswer`.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.errors import DataError
from regard.lessons.scripts import Lesson

Check = Callable[[Any], str]


class WrongAnswer(Exception):
    """A wrong answer; the message is one sentence that says what is wrong."""


class Verdict(NamedTuple):
    """The outcome of one exercise."""

    exercise: str
    right: bool
    sentence: str


def exercise(check: Check) -> Check:
    """Mark a function as the check of the exercise of its name.

    >>> @regard.lessons.exercise
    ... def answer(value):
    ...     if value != 42:
    ...         raise regard.lessons.WrongAnswer(f"it is {value}, not 42")
    ...     return "it is 42"
    """
    check.is_exercise = True  # type: ignore[attr-defined]
    return check


def checks_of(lesson: Lesson) -> dict[str, Check]:
    """The checks of a lesson by the name of their exercise."""
    if not lesson.checks.is_file():
        raise DataError(f"lesson {lesson.number} has no exercises to check")
    names = runpy.run_path(str(lesson.checks))
    return {name: value for name, value in names.items() if getattr(value, "is_exercise", False)}


def check_answers(lesson: Lesson, answer: str | PathLike[str]) -> list[Verdict]:
    """Run the reader's file and check what it defines; one verdict per exercise of the lesson."""
    checks = checks_of(lesson)
    return _verdicts(checks, _definitions(Path(answer)))


def _definitions(path: Path) -> dict[str, Any]:
    """Run a Python file; return the names that it defines."""
    if not path.is_file():
        raise DataError(f"{path} does not exist; write your answers into a Python file and name it")
    try:
        return runpy.run_path(str(path))
    except Exception as error:
        raise DataError(f"{path} cannot be run: {type(error).__name__}: {error}") from error


def _verdicts(checks: dict[str, Check], names: dict[str, Any]) -> list[Verdict]:
    verdicts = []
    for name, check in checks.items():
        if name not in names:
            verdicts.append(Verdict(name, False, f"the file does not define {name}"))
            continue
        torch.manual_seed(0)  # the same inputs at every run
        try:
            verdicts.append(Verdict(name, True, check(names[name])))
        except WrongAnswer as wrong:
            verdicts.append(Verdict(name, False, str(wrong)))
        except Exception as error:  # the reader's function, or what it returned to the check
            first_line = str(error).split("\n", 1)[0]
            verdicts.append(Verdict(name, False, f"it raised {type(error).__name__}: {first_line}"))
    return verdicts


def require_close(
    got: Any, expected: torch.Tensor | float, what: str, tolerance: float = 1e-4
) -> torch.Tensor:
    """Raise WrongAnswer unless `got` is a tensor or number close to `expected`; return it as a tensor."""
    if not isinstance(got, torch.Tensor | float | int) or isinstance(got, bool):
        raise WrongAnswer(f"{what} must be a tensor or a number, got {type(got).__name__}")
    got = torch.as_tensor(got, dtype=torch.float64)
    expected = torch.as_tensor(expected, dtype=torch.float64)
    if got.shape != expected.shape:
        raise WrongAnswer(f"{what} has shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
    if not torch.allclose(got, expected, rtol=tolerance, atol=tolerance):
        worst = (got - expected).abs().nan_to_num(float("inf")).max()
        raise WrongAnswer(f"{what} differs from the right value by up to {worst:.3g}")
    return got
