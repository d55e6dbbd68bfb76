"""`regard lessons`: list, read and run the lessons, and check answers to their exercises."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NUMBER | check NUMBER FILE",
            help="A lesson to read, or a file with answers to its exercises.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="all|N,N…", help="Run lessons; every number is checked.")
    ] = None,
    size: Annotated[str, typer.Option(help="full, or small for some seconds per lesson.")] = "full",
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Save the pictures of a run here, as .svg.")
    ] = None,
) -> None:
    """List the lessons, read or run them, and check answers to their exercises.

    Examples:

        regard lessons                      # the list

        regard lessons 5                    # the text and code of a lesson

        regard lessons --run 5,6 --pictures drawings

        regard lessons --run all --size small

        regard lessons check 5 answer.py    # check your answers
    """
    from rich.console import Console

    from regard.errors import OptionError

    console = Console(highlight=False)
    if run is not None:
        if words:
            raise OptionError(f"--run takes the numbers, as in --run {words[0]}; leave {words[0]!r} out")
        _run(run, size, pictures)
    elif not words:
        _list(console)
    elif words[0] == "check":
        _check(words[1:])
    elif len(words) == 1:
        _read(console, words[0])
    else:
        raise OptionError(f"name one lesson to read, got {' '.join(words)}; run several with --run 1,2")


def _list(console: Console) -> None:
    from rich.table import Table

    from regard.lessons.scripts import lessons_folder, list_lessons

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("lesson")
    table.add_column("", style="dim")
    for lesson in list_lessons():
        table.add_row(str(lesson.number), lesson.title, lesson.summary)
    console.print(table)
    console.print(
        f"\n`regard lessons 1` shows a lesson, --run 1 runs it; the scripts are in {lessons_folder()}"
    )


def _read(console: Console, number: str) -> None:
    from rich.markdown import Markdown

    from regard.lessons.pages import page
    from regard.lessons.scripts import find_lesson

    text = page(find_lesson(number))
    console.print(Markdown(text) if console.is_terminal else text, markup=False)


def _run(chosen: str, size: str, folder: Path | None) -> None:
    from regard.errors import OptionError
    from regard.files.atomic import disk_errors
    from regard.lessons.running import SIZES, run_lesson, save_numbered
    from regard.lessons.scripts import find_lesson, list_lessons

    lessons = list_lessons() if chosen == "all" else [find_lesson(n.strip()) for n in chosen.split(",")]
    if size not in SIZES:
        raise OptionError(f"--size must be full or small, got {size!r}")
    if folder is not None:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
    failed, seconds = [], 0.0
    for lesson in lessons:
        print(f"Lesson {lesson.number}: {lesson.title}", flush=True)
        result = run_lesson(lesson, size, echo=True)
        seconds += result.seconds
        for picture, caption in (shown for cell in result.cells.values() for shown in cell.pictures):
            saved = f": {save_numbered(picture, folder, lesson.name)}" if folder is not None else ""
            print(f"[picture: {caption}{saved}]")
        if result.error:
            failed.append(str(lesson.number))
            print(f"failed at {result.error}\n", flush=True)
        else:
            print(f"all numbers hold, {result.seconds:.1f} s\n", flush=True)
    print(f"{len(lessons) - len(failed)} of {len(lessons)} lessons passed in {seconds:.0f} s")
    if failed:
        print(f"failed: {', '.join(failed)}")
        raise typer.Exit(1)


def _check(words: list[str]) -> None:
    from regard.errors import OptionError
    from regard.lessons.exercises import check_answers
    from regard.lessons.scripts import find_lesson

    if len(words) != 2:
        raise OptionError("check takes the number of a lesson and a file: `regard lessons check 5 answer.py`")
    verdicts = check_answers(find_lesson(words[0]), words[1])
    for verdict in verdicts:
        print(f"{'right' if verdict.right else 'wrong'}: {verdict.exercise}: {verdict.sentence}")
    if not all(verdict.right for verdict in verdicts):
        raise typer.Exit(1)
