"""Running lessons: cells (scripts.py), sizes, captured output, errors with their line."""

import sys

import pytest

from regard.errors import OptionError
from regard.lessons import Lesson, by_size, check_answers, expect, find_lesson, run_lesson, show
from regard.lessons.running import save_numbered
from regard.lessons.scripts import parse_cells
from regard.pictures import LineChart

SCRIPT = """# %% [markdown]
# # Lesson 7: A title
#
# A summary
# in two lines.
#
# More.

# %%
from regard.lessons import by_size, show
from regard.pictures import LineChart

print(by_size(full="large", small="little"))
show(LineChart({"a": [(0, 1), (1, 2)]}, "A chart"))

# %%

assert 1 + 1 == 3, "arithmetic"
"""


@pytest.fixture
def lesson(tmp_path):
    (tmp_path / "07_a_title.py").write_text(SCRIPT, encoding="utf-8")
    return Lesson(7, tmp_path / "07_a_title.py")


def test_a_lesson_has_a_title_a_summary_and_cells(lesson):
    assert (lesson.title, lesson.summary, lesson.name) == ("A title", "A summary in two lines.", "07-a-title")
    assert [(cell.kind, cell.line) for cell in lesson.cells()] == [
        ("markdown", 2),
        ("code", 10),
        ("code", 18),
    ]
    lines = SCRIPT.splitlines()
    for cell in lesson.cells():
        assert lines[cell.line - 1].endswith(cell.source.splitlines()[0])


def test_empty_cells_are_left_out():
    assert parse_cells("# %%\n\n# %%\nx = 1\n") == [("code", "x = 1", 4)]


@pytest.mark.parametrize(("size", "output"), [("small", "little"), ("full", "large")])
def test_a_run_keeps_output_and_pictures_and_names_the_line_of_an_error(lesson, size, output, capsys):
    result = run_lesson(lesson, size)
    assert result.cells[10].output == f"{output}\n"
    assert [caption for _, caption in result.cells[10].pictures] == ["A chart"]
    assert result.error == "line 18: AssertionError: arithmetic"
    assert capsys.readouterr().out == ""
    run_lesson(lesson, size, echo=True)
    assert capsys.readouterr().out == f"{output}\n"


def test_the_size_outside_of_a_run_is_that_of_the_environment(monkeypatch):
    assert by_size(full=2, small=1) == 2
    monkeypatch.setenv("REGARD_LESSON_SIZE", "small")
    assert by_size(full=2, small=1) == 1
    monkeypatch.setenv("REGARD_LESSON_SIZE", "tiny")
    with pytest.raises(OptionError, match="tiny"):
        by_size(full=2, small=1)


def test_expect_prints_both_numbers_and_fails_beyond_the_tolerance(capsys):
    expect("a half", 0.51, 0.5, within=0.02, source="a paper")
    assert capsys.readouterr().out == "a half: 0.51 (expected 0.5 ± 0.02: a paper)\n"
    for value in (0.53, float("nan")):
        with pytest.raises(AssertionError, match="a half"):
            expect("a half", value, 0.5, within=0.02, source="a paper")


def test_a_script_on_its_own_saves_its_pictures_if_a_folder_is_set(tmp_path, monkeypatch, capsys):
    picture = LineChart({"a": [(0, 1), (1, 2)]}, "A chart")
    show(picture)
    assert capsys.readouterr().out == "[picture: A chart]\n"
    monkeypatch.setenv("REGARD_LESSON_PICTURES", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["07_a_title.py"])
    show(picture)
    show(picture)
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["07_a_title-1.svg", "07_a_title-2.svg"]
    with pytest.raises(OptionError, match="does not exist"):
        save_numbered(picture, tmp_path / "no", "x")


def test_a_lesson_that_does_not_exist_is_an_error():
    for number in ("99", "x", -1):
        with pytest.raises(OptionError, match=f"no lesson '{number}'"):
            find_lesson(number)


def test_a_script_without_title_is_refused(tmp_path):
    (tmp_path / "03_x.py").write_text("# %%\nprint()\n", encoding="utf-8")
    with pytest.raises(OptionError, match="must start with a markdown cell"):
        Lesson(3, tmp_path / "03_x.py").title  # noqa: B018


def test_an_answer_that_raises_or_is_missing_is_wrong_in_one_sentence(tmp_path):
    answer = tmp_path / "answer.py"
    answer.write_text("def soft_lookup(*args):\n    raise KeyError('a\\nb')\n", encoding="utf-8")
    first, second = check_answers(find_lesson(1), answer)
    assert not first.right and first.sentence.startswith("it raised KeyError")
    assert not second.right and second.sentence == "the file does not define temperature_for"
