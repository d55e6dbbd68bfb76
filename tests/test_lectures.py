"""docs/lectures.md: all 51 rows, names that import, test files that exist, and a state for each row."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "lectures.md").read_text(encoding="utf-8")
ROWS = {
    int(number): [cell.strip() for cell in cells.split("|")]
    for number, cells in re.findall(r"^\| (\d+) \| (.+) \|$", TEXT, re.M)
}


def test_every_row_of_the_lectures_is_there_once():
    assert list(ROWS) == list(range(1, 52))
    assert len(re.findall(r"^\| \d+ \|", TEXT, re.M)) == 51


@pytest.mark.parametrize("number", ROWS)
def test_a_row_names_code_and_tests_that_exist(number):
    _, where, tests, state = ROWS[number]
    names, files = re.findall(r"`(regard(?:\.\w+)+)`", where), re.findall(r"`([^`]+)`", tests)
    for name in names:
        assert reduce(getattr, name.split(".")[1:], import_module("regard")) is not None
    for file in files:
        assert (ROOT / file).is_file(), file
    assert re.match(r"done$|partly: \w|not yet$", state)
    if state == "not yet":
        assert not files and not names
    else:
        assert files


@pytest.mark.parametrize("attention", re.findall(r"`attention: (\w+)`", TEXT))
def test_a_decoder_that_a_row_names_can_be_built(attention):
    decoder = {"kind": "recurrent", "attention": attention}
    assert regard.build({"dim": 8, "encoder": {"kind": "recurrent"}, "decoder": decoder}, 10, 10)


def test_recipes_that_a_row_names_are_included():
    names = re.findall(r"`(sst2[\w-]*)`", TEXT)
    assert len(names) >= 5
    assert all((ROOT / "recipes" / f"{name}.yaml").is_file() for name in names)


def test_every_row_has_its_lesson_or_is_listed_without_one():
    lessons = re.findall(r"^\| (.+?) \| ([\d, ]+) \|$", TEXT.split("## Lessons and their rows")[1], re.M)
    taught = [{int(row) for row in rows.split(", ")} for _, rows in lessons]
    assert set().union(*taught) == set(range(1, 52))
    assert not taught[-1] & set().union(*taught[:-1])  # the last line: rows without a lesson
    scripts = {int(path.name[:2]) for path in (ROOT / "lessons").glob("[0-9][0-9]_*.py")}
    assert {int(number) for title, _ in lessons for number in re.findall(r"^\[(\d+)\]", title)} == scripts
