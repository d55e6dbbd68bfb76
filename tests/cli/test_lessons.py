"""`regard lessons`: the list, a lesson, a run, a check of answers; errors in one sentence."""

import re

import pytest
from typer.testing import CliRunner

from regard.cli.main import app
from regard.errors import RegardError
from regard.lessons import find_lesson, list_lessons


def run(*args):
    return CliRunner().invoke(app, ["lessons", *map(str, args)])


def test_the_list_has_every_lesson():
    out = run().output
    assert all(lesson.title.split()[0] in out for lesson in list_lessons())


def test_a_lesson_is_shown_with_text_and_code():
    lesson = find_lesson(1)
    out = " ".join(run(1).output.split())
    assert lesson.title in out
    assert "import regard" in out


def test_a_run_prints_what_the_lesson_prints_and_saves_its_pictures(tmp_path):
    done = run("--run", "1", "--size", "small", "--pictures", tmp_path / "drawings")
    assert done.exit_code == 0
    assert "(expected " in done.output
    assert re.search(r"1 of 1 lessons passed in \d+ s$", done.output.strip())
    assert list((tmp_path / "drawings").glob("01-soft-lookup-*.svg"))


def test_a_check_ends_with_1_if_an_answer_is_wrong(tmp_path):
    lesson = find_lesson(1)
    done = run("check", 1, lesson.solution)
    assert done.exit_code == 0 and done.output.count("right: ") == 2
    (tmp_path / "answer.py").write_text("def soft_lookup(*args): return 0.0\n", encoding="utf-8")
    done = run("check", 1, tmp_path / "answer.py")
    assert done.exit_code == 1
    assert "wrong: soft_lookup: the answer at τ = 0.1 has shape ()" in done.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("99",), "no lesson '99'"),
        (("1", "2"), "run several with --run 1,2"),
        (("--run", "1,x"), "no lesson 'x'"),
        (("1", "--run", "1"), "leave '1' out"),
        (("--run", "1", "--size", "huge"), "full or small, got 'huge'"),
        (("check", "1"), "regard lessons check 5 answer.py"),
        (("check", "1", "nowhere.py"), "nowhere.py does not exist"),
    ],
)
def test_bad_input_is_an_error_of_one_sentence(args, message):
    error = run(*args).exception
    assert isinstance(error, RegardError)
    assert message in str(error) and "\n" not in str(error)
