"""Running a lesson, and the functions that lesson scripts call: `by_size`, `expect`, `show`."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from regard.arguments import one_of
from regard.errors import OptionError
from regard.lessons.scripts import Lesson
from regard.pictures.picture import Picture

SIZES = ("full", "small")
SIZE_VARIABLE = "REGARD_LESSON_SIZE"
PICTURES_VARIABLE = "REGARD_LESSON_PICTURES"
T = TypeVar("T")

_size: ContextVar[str | None] = ContextVar("lesson size", default=None)
_shown: ContextVar[list[tuple[Picture, str]] | None] = ContextVar("pictures of the cell", default=None)


def by_size(*, full: T, small: T) -> T:
    """The value for the size of this run: `full`, or `small` in tests and with --size small.

    >>> steps = regard.lessons.by_size(full=600, small=60)
    """
    size = _size.get() or os.environ.get(SIZE_VARIABLE, "full")
    one_of(SIZE_VARIABLE, size, SIZES)
    return small if size == "small" else full


def expect(what: str, value: float, target: float, *, within: float, source: str) -> None:
    """Print a value and its target; raise an AssertionError if they differ by more than `within`.

    >>> regard.lessons.expect("one half", 0.501, 0.5, within=0.01, source="arithmetic")
    one half: 0.501 (expected 0.5 ± 0.01: arithmetic)
    """
    tolerance = f"± {within:g}" if within else "exactly"
    print(f"{what}: {_number(value)} (expected {_number(target)} {tolerance}: {source})")
    assert abs(value - target) <= within, f"{what} is {value:.6g}, expected {target:.6g} ± {within:g}"


def _number(value: float) -> str:
    """Four digits; large integers in full."""
    return f"{int(value):,}" if abs(value) >= 1e4 and value == int(value) else f"{value:.4g}"


def show(picture: Picture, caption: str = "") -> None:
    """Show a picture: on the lesson's page, in a notebook, or in a file.

    In a plain script it is saved if REGARD_LESSON_PICTURES names a folder.
    """
    shown = _shown.get()
    title = caption or picture.canvas().title
    if shown is not None:
        shown.append((picture, title))
    elif "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        import_module("IPython.display").display(picture)
    elif os.environ.get(PICTURES_VARIABLE):
        path = save_numbered(picture, Path(os.environ[PICTURES_VARIABLE]), Path(sys.argv[0]).stem)
        print(f"[picture: {title}: {path}]")
    else:
        print(f"[picture: {title}]")


def save_numbered(picture: Picture, folder: Path, name: str) -> Path:
    """Save a picture as `name-1.svg`, `name-2.svg`, …: the first number that the folder does not have."""
    if not folder.is_dir():
        raise OptionError(f"the folder for pictures {str(folder)!r} does not exist; create it first")
    number = 1
    while (folder / f"{name}-{number}.svg").exists():
        number += 1
    return picture.save(folder / f"{name}-{number}.svg")


@dataclass
class CellResult:
    """What a code cell printed, and the pictures that it showed with their captions."""

    output: str = ""
    pictures: list[tuple[Picture, str]] = field(default_factory=list)


@dataclass
class LessonResult:
    """A run of a lesson: a result per code cell, seconds, and the error that ended it, if any."""

    lesson: Lesson
    cells: dict[int, CellResult]  # by the line of the cell
    seconds: float
    error: str = ""


def run_lesson(lesson: Lesson, size: str = "full", *, echo: bool = False) -> LessonResult:
    """Run a lesson cell by cell.

    Args:
        lesson: from `find_lesson` or `list_lessons`.
        size: "full", or "small" for a run of some seconds.
        echo: print the output while the lesson runs.
    """
    one_of("size", size, SIZES)
    result = LessonResult(lesson, {}, 0.0)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(lesson.path)}
    start = time.perf_counter()
    token = _size.set(size)
    try:
        for cell in lesson.cells():
            if cell.kind == "code":
                # Line numbers of the file, so that an error names the right line.
                code = compile("\n" * (cell.line - 1) + cell.source, str(lesson.path), "exec")
                result.cells[cell.line] = CellResult()
                with _captured(result.cells[cell.line], echo):
                    exec(code, names)
    except Exception as error:
        result.error = f"line {_line(error, lesson)}: {type(error).__name__}: {error}"
    finally:
        _size.reset(token)
    result.seconds = time.perf_counter() - start
    return result


@contextmanager
def _captured(cell: CellResult, echo: bool) -> Iterator[None]:
    """Collect what is printed and shown in a cell."""
    token = _shown.set(cell.pictures)
    text = _Echo(sys.stdout if echo else None)
    try:
        with redirect_stdout(text):
            yield
    finally:
        cell.output = text.getvalue()
        _shown.reset(token)


class _Echo(io.StringIO):
    """A text buffer that also writes to another stream."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.other = other

    def write(self, text: str) -> int:
        if self.other is not None:
            self.other.write(text)
        return super().write(text)


def _line(error: BaseException, lesson: Lesson) -> int:
    """The last line of the lesson in the traceback of an error."""
    line, frame = getattr(error, "lineno", None) or 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(lesson.path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
