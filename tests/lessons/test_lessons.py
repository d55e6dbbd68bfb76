"""Every lesson runs at the small size, has a current page, and its checks reject wrong answers.

Covers exercises.py, pages.py and notebooks.py.
"""

import json
import re
import runpy
from pathlib import Path

import pytest
import torch

from regard.lessons import check_answers, list_lessons, notebook, run_lesson
from regard.lessons.__main__ import main
from regard.lessons.exercises import _verdicts, checks_of
from regard.lessons.pages import page, table, without_results

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LESSONS = list_lessons()


def by_number(lesson):
    return f"{lesson.number:02}"


@pytest.mark.parametrize("lesson", LESSONS, ids=by_number)
def test_a_lesson_runs_without_errors_at_the_small_size(lesson):
    state = torch.get_rng_state()
    result = run_lesson(lesson, "small")
    torch.set_rng_state(state)
    assert result.error == ""
    assert any(cell.pictures for cell in result.cells.values()), "it draws nothing"
    assert re.search(r"\(expected .+: .+\)", "".join(cell.output for cell in result.cells.values()))


@pytest.mark.parametrize("lesson", LESSONS, ids=by_number)
def test_the_page_of_a_lesson_is_current(lesson):
    """Only text and code are compared: outputs depend on the machine. `make lessons` writes the pages."""
    text = (DOCS / "lessons" / f"{lesson.name}.md").read_text(encoding="utf-8")
    assert without_results(text) == page(lesson)
    pictures = re.findall(r"^!\[.+\]\((.+\.svg)\)$", text, re.M)
    assert pictures
    assert {path.name for path in (DOCS / "lessons").glob(f"{lesson.name}-*.svg")} == set(pictures)
    assert f"lessons/{lesson.name}.md\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_a_page_has_outputs_and_pictures_and_replaces_those_of_an_earlier_run(tmp_path, capsys):
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "01-soft-lookup-9.svg").write_text("old", encoding="utf-8")
    (tmp_path / "lessons.md").write_text("Above\n\n| # | old |\n|---|---|\n\nBelow\n", encoding="utf-8")
    assert main(["pages", str(tmp_path), "1"]) == 0
    text = (tmp_path / "lessons" / "01-soft-lookup.md").read_text(encoding="utf-8")
    assert "```text\nMay 5th 2000\n```" in text
    assert without_results(text) == page(LESSONS[0]) != text
    names = [path.name for path in sorted((tmp_path / "lessons").glob("*.svg"))]
    assert names == ["01-soft-lookup-1.svg", "01-soft-lookup-2.svg"]
    assert (tmp_path / "lessons.md").read_text(encoding="utf-8") == f"Above\n\n{table()}\n\nBelow\n"


def test_a_wrong_call_prints_the_usage(capsys):
    assert main(["page"]) == 2
    assert "python -m regard.lessons pages docs" in capsys.readouterr().err


def test_the_list_of_lessons_is_current():
    assert table() in (DOCS / "lessons.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("lesson", LESSONS, ids=by_number)
def test_the_checks_accept_the_solutions_and_reject_wrong_answers(lesson):
    verdicts = check_answers(lesson, lesson.solution)
    assert len(verdicts) >= 2
    assert [verdict for verdict in verdicts if not verdict.right] == []
    text = lesson.cells()[-1].source
    assert "## Exercises" in text and f"regard lessons check {lesson.number} answer.py" in text
    assert all(f"`{verdict.exercise}" in text for verdict in verdicts), "the text names every exercise"

    names = runpy.run_path(str(lesson.solution))
    for distort in (lambda value: None, _shifted):
        wrong = {exercise: _distorted(names[exercise], distort) for exercise in checks_of(lesson)}
        for verdict in _verdicts(checks_of(lesson), wrong):
            assert not verdict.right, f"{verdict.exercise} accepts a wrong answer"
            assert "\n" not in verdict.sentence


def _distorted(answer, distort):
    return (lambda *args, **kwargs: distort(answer(*args, **kwargs))) if callable(answer) else distort(answer)


def _shifted(value):
    """A wrong value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list | tuple):
        return type(value)(_shifted(item) for item in value)
    if isinstance(value, dict):
        return {key: _shifted(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return ~value if value.dtype is torch.bool else value * 2 + 1
    return value * 2 + 1 if isinstance(value, int | float) else None


def test_notebooks_have_the_cells_of_the_scripts(tmp_path, capsys):
    assert main(["notebooks", str(tmp_path / "notebooks")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(LESSONS)
    for lesson in LESSONS:
        text = (tmp_path / "notebooks" / f"{lesson.name}.ipynb").read_text(encoding="utf-8")
        assert json.loads(text) == notebook(lesson)
        cells = json.loads(text)["cells"]
        assert ["".join(cell["source"]) for cell in cells] == [cell.source for cell in lesson.cells()]
        assert len({cell["id"] for cell in cells}) == len(cells)
