"""`python -m regard.lessons pages docs [5,6]` and `python -m regard.lessons notebooks FOLDER`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from regard.files.atomic import write_file
from regard.lessons.notebooks import write_notebooks
from regard.lessons.pages import table, write_page
from regard.lessons.running import run_lesson
from regard.lessons.scripts import find_lesson, list_lessons


def write_pages(docs: Path, numbers: str = "") -> int:
    """Run lessons at full size, write their pages, and update the table in lessons.md."""
    chosen = [find_lesson(number) for number in numbers.split(",")] if numbers else list_lessons()
    for lesson in chosen:
        result = run_lesson(lesson)
        if result.error:
            print(f"lesson {lesson.number} failed: {result.error}", file=sys.stderr)
            return 1
        print(f"{write_page(result, docs / 'lessons')}  {result.seconds:.1f} s", flush=True)
    listing = docs / "lessons.md"
    text = listing.read_text(encoding="utf-8")
    write_file(listing, re.sub(r"^\| # \|.*?(?=^(?!\|))", table() + "\n", text, flags=re.M | re.S))
    return 0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["pages", docs, *numbers] if len(numbers) <= 1 and (Path(docs) / "lessons.md").is_file():
            return write_pages(Path(docs), *numbers)
        case ["notebooks", folder]:
            for path in write_notebooks(Path(folder)):
                print(path)
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
