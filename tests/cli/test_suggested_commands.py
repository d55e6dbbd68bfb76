"""Tests that every command in messages, help, README and documentation parses."""

import ast
import functools
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from regard.cli.main import app
from regard.recipe.loading import load_recipe, recipe_files

ROOT = Path(__file__).parents[2]
UsageError = typer.BadParameter.__base__  # of the click version that typer uses
GROUP = typer.main.get_command(app)
NAMES = "|".join(GROUP.commands)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SAFE = {
    "model_kind",
    "KINDS[model_kind].example",
    "self.name",
    "known.name",
    "lesson.number",
    "run",
    "usage.format(run=run)",
}  # not a path, or already quoted by for_shell


@functools.cache
def strings():
    """Every string of the package with its position, from the files with commands; interpolated expressions
    are between two NULs.
    """
    results = []
    for path in sorted((ROOT / "src" / "regard").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not re.search(r"regard [a-z{]", text):
            continue
        tree = ast.parse(text)
        inside = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
        }
        name = path.relative_to(ROOT)
        for node in ast.walk(tree):
            place = f"{name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else f"\0{ast.unparse(part.value)}\0"
                    for part in node.values
                ]
                results.append((place, "".join(parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                results.append((place, node.value))
    return results


def suggested(text):
    """The commands in backticks, and those on lines of their own (help examples, messages)."""
    yield from re.findall(r"`(regard [^`]+)`", text)
    for line in text.splitlines():
        if re.match(rf"\s*([a-z]+ [^|`]+\| )?regard ({NAMES})\b", line):
            yield from (part.strip() for part in line.split(" | ") if part.strip().startswith("regard "))


def examples(page):
    """Commands in the shell blocks and backticks of a page, except those abbreviated with …."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:sh|bash)?\n(.*?)^```", text, re.M | re.S):
        yield from suggested(block.replace("\\\n", " "))
    yield from re.findall(r"`(regard [^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def check(command):
    """Parse a command without running it; load its recipe if it is an included one, with its overrides.

    The bare name of a command is only a mention and is accepted.
    """
    words = shlex.split(command.replace("…", ""), comments=True)[1:]
    words = words[
        : next((i for i, word in enumerate(words) if word in ("&&", "&", ">", "<", "|")), len(words))
    ]
    if not words or words[0] not in GROUP.commands:
        assert not words or words[0].startswith("-"), f"there is no command {words[0]!r}"
        return
    if len(words) == 1:
        return
    values = GROUP.commands[words[0]].make_context(words[0], words[1:]).params
    if values.get("recipe") in recipe_files() and words[-1][-1] not in "=.":  # an abbreviated command
        changes = [f"distillation.teacher={values['teacher']}"] if "teacher" in values else []
        load_recipe(values["recipe"], [*changes, *(values.get("overrides") or ())])


TASKS = {
    "translate": "translate", "align": "translate", "generate": "language", "classify": "classify",
    "tag": "tag", "index": "embed"
}  # fmt: skip
MESSAGES = [(place, command) for place, text in strings() for command in suggested(text)]
PAGE_COMMANDS = [(page.name, command) for page in PAGES for command in examples(page)]


def test_there_are_commands_to_check():
    assert len(MESSAGES) > 60 and len(PAGE_COMMANDS) > 60


ALL = [*MESSAGES, *PAGE_COMMANDS]


@pytest.mark.parametrize(("place", "command"), ALL, ids=[f"{place}-{i}" for i, (place, _) in enumerate(ALL)])
def test_a_suggested_command_parses(place, command):
    values = re.findall("\0(.*?)\0", command)
    careless = [value for value in values if "for_shell(" not in value and value not in SAFE]
    assert not careless, f"{place}: {careless[0]} must be for_shell for the shell: a path may have spaces"
    try:
        check(re.sub("\0.*?\0", "1", command))
    except (UsageError, ValueError) as error:  # RecipeError is a ValueError
        pytest.fail(f"{place}: `{command}`: {error}")


HELP = [
    (name, line)
    for name, command in GROUP.commands.items()
    for line in suggested(command.help or "")
    if re.search(r"runs/[\w-]+", line)
]


@pytest.mark.parametrize(("name", "line"), HELP, ids=[f"{name}-{i}" for i, (name, _) in enumerate(HELP)])
def test_a_help_example_names_a_model_that_can_do_it(name, line):
    """runs/NAME is the result of `regard train NAME`; its kind must match the command, also for attention."""
    for run in re.findall(r"runs/([\w-]+)", line):
        recipe = load_recipe(run)
        assert recipe.task == TASKS.get(name, recipe.task), line
        if name == "classify" and "--attention" in line:
            assert recipe.model.pooling.kind == "attention" or recipe.model.encoder.kind in (
                "transformer",
                "stacked",
            ), line
        if "--by-length" in line:
            assert recipe.task == "translate", line


def test_commands_in_messages_are_in_backticks():
    """So that the end of the command is visible, and the test above finds it."""
    wrong = []
    for place, text in strings():
        for line in text.splitlines():
            bare = re.sub(r"`[^`]*`", "", line)
            if re.match(rf"\s*([a-z]+ [^|`]+\| )?regard ({NAMES})\b", bare):  # an example on its own line
                continue
            if re.search(rf"(?<![\w.`])regard ({NAMES})\b", bare):
                wrong.append(f"{place}: {line.strip()}")
    assert wrong == []


WRONG = [
    "regard train --overwrite", "regard evaluate runs/a b", "regard cost --lenght 3", "regard trian x",
    "regard train small model.dimm=3", "regard distill runs/small small-student distillation.beams=8",
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_the_check_detects_wrong_commands(wrong):
    with pytest.raises((UsageError, AssertionError, ValueError)):
        check(wrong)
