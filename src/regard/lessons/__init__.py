"""Lessons: scripts with one idea each that compute, draw and check what they teach.

`regard lessons` lists them; `by_size`, `expect`, `read_log` and `show` are what a lesson uses, `exercise`
what its checker uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.lessons.exercises import WrongAnswer, check_answers, exercise
    from regard.lessons.long_runs import read_log
    from regard.lessons.notebooks import notebook
    from regard.lessons.running import by_size, expect, run_lesson, show
    from regard.lessons.scripts import Lesson, find_lesson, list_lessons

__all__ = [
    "Lesson",
    "WrongAnswer",
    "by_size",
    "check_answers",
    "exercise",
    "expect",
    "find_lesson",
    "list_lessons",
    "notebook",
    "read_log",
    "run_lesson",
    "show",
]
__getattr__ = exported(
    __name__,
    {
        "Lesson": "scripts",
        "WrongAnswer": "exercises",
        "by_size": "running",
        "check_answers": "exercises",
        "exercise": "exercises",
        "expect": "running",
        "find_lesson": "scripts",
        "list_lessons": "scripts",
        "notebook": "notebooks",
        "read_log": "long_runs",
        "run_lesson": "running",
        "show": "running",
    },
)
