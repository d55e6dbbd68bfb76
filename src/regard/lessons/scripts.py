"""The lesson scripts: where they are, their titles, and their cells (percent format)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from regard.errors import OptionError


class Cell(NamedTuple):
    """A cell of a lesson. `line` is the line of its first source line in the file, from 1."""

    kind: Literal["markdown", "code"]
    source: str
    line: int


@dataclass(frozen=True)
class Lesson:
    """A lesson script, `NN_name.py`, whose first cell is a title `# Lesson N: …` and a summary."""

    number: int
    path: Path

    @property
    def name(self) -> str:
        """The name of its page and notebook, such as 01-soft-lookup."""
        return self.path.stem.replace("_", "-")

    @property
    def title(self) -> str:
        return self._opening()[0]

    @property
    def summary(self) -> str:
        """The first paragraph."""
        return self._opening()[1]

    def cells(self) -> list[Cell]:
        return parse_cells(self.path.read_text(encoding="utf-8"))

    @property
    def checks(self) -> Path:
        """The file with the checks of its exercises."""
        return self.path.parent / "checks" / f"{self.number:02}.py"

    @property
    def solution(self) -> Path:
        """A file with right answers to its exercises."""
        return self.path.parent / "solutions" / f"{self.number:02}.py"

    def _opening(self) -> tuple[str, str]:
        first = self.cells()[0]
        heading = re.match(rf"# Lesson {self.number}: ([^\n]+)\n\n(.+?)(?:\n\n|$)", first.source, re.S)
        if first.kind != "markdown" or heading is None:
            raise OptionError(
                f"{self.path.name} must start with a markdown cell: '# Lesson {self.number}: title' "
                "and a paragraph that is its summary"
            )
        return heading[1], " ".join(heading[2].split())


def lessons_folder() -> Path:
    """The folder of lesson scripts: in an installed package, or in the repository."""
    package = Path(__file__).parent
    for folder in (package / "scripts", package.parents[2] / "lessons"):
        if folder.is_dir():
            return folder
    raise OptionError("the lesson scripts are missing from this installation; install regard again")


def list_lessons() -> list[Lesson]:
    """All lessons, by number."""
    paths = sorted(lessons_folder().glob("[0-9][0-9]_*.py"))
    return [Lesson(int(path.name[:2]), path) for path in paths]


def find_lesson(number: int | str) -> Lesson:
    """The lesson of a number."""
    available = {lesson.number: lesson for lesson in list_lessons()}
    if not str(number).isdecimal() or int(number) not in available:
        numbers = ", ".join(map(str, available))
        raise OptionError(f"there is no lesson {str(number)!r}; the lessons are {numbers}")
    return available[int(number)]


def parse_cells(text: str) -> list[Cell]:
    """The cells of a script: `# %%` starts code, `# %% [markdown]` starts text in comments."""
    cells = []
    parts = re.split(r"^(# %%.*)$\n?", text, flags=re.M)
    line = 1 + parts[0].count("\n")
    for marker, body in zip(parts[1::2], parts[2::2], strict=True):
        source = body.strip("\n")
        start = line + 1 + len(body) - len(body.lstrip("\n"))
        line += 1 + body.count("\n")
        if not source.strip():
            continue
        if "[markdown]" in marker:
            source = re.sub(r"^# ?", "", source, flags=re.M)
        cells.append(Cell("markdown" if "[markdown]" in marker else "code", source, start))
    return cells
