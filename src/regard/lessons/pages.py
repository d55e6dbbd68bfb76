"""Lessons as pages of the documentation: text, code, output and pictures."""

from __future__ import annotations

import re
from pathlib import Path

from regard.files.atomic import write_file
from regard.lessons.running import LessonResult
from regard.lessons.scripts import Lesson, list_lessons


def page(lesson: Lesson, result: LessonResult | None = None) -> str:
    """A lesson as Markdown; with a result, also what its cells printed and showed.

    Outputs are ```text blocks and pictures are image lines, so that `without_results` can remove them.
    """
    parts, number = [], 0
    for cell in lesson.cells():
        if cell.kind == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if result is not None:
            cell_result = result.cells[cell.line]
            if cell_result.output.strip():
                parts.append(f"```text\n{cell_result.output.rstrip()}\n```")
            for _, caption in cell_result.pictures:
                number += 1
                parts.append(f"![{caption}]({lesson.name}-{number}.svg)")
    footer = (
        f"*`regard lessons --run {lesson.number}` runs this lesson; its script is "
        f"`lessons/{lesson.path.name}`. This page is made by `make lessons`.*"
    )
    return "\n\n".join([*parts, footer]) + "\n"


def without_results(markdown: str) -> str:
    """A page without outputs and pictures, which is equal to `page(lesson)` if the page is current."""
    markdown = re.sub(r"^```text\n.*?^```\n\n", "", markdown, flags=re.M | re.S)
    return re.sub(r"^!\[[^\n]*\]\([^)\n]*\.svg\)\n\n", "", markdown, flags=re.M)


def write_page(result: LessonResult, folder: Path) -> Path:
    """Write the page of a lesson and its pictures; pictures of an earlier run are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    lesson = result.lesson
    for old in folder.glob(f"{lesson.name}-*.svg"):
        old.unlink()
    pictures = [picture for cell in result.cells.values() for picture, _ in cell.pictures]
    for number, picture in enumerate(pictures, 1):
        picture.save(folder / f"{lesson.name}-{number}.svg")
    path = folder / f"{lesson.name}.md"
    write_file(path, page(lesson, result))
    return path


def table() -> str:
    """The table of all lessons, for the page that lists them."""
    rows = [
        f"| {lesson.number} | [{lesson.title}](lessons/{lesson.name}.md) | {lesson.summary} |"
        for lesson in list_lessons()
    ]
    return "\n".join(["| # | lesson | |", "|---|---|---|", *rows])
