"""Tests of option_groups.py: groups of options are expanded and collected again."""

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from regard.cli.option_groups import (
    BeamOptions,
    ConstraintOptions,
    OptionGroup,
    SamplingOptions,
    grouped,
    option,
)
from regard.errors import OptionError


@dataclass(frozen=True)
class Colour(OptionGroup):
    red: Annotated[int, option(min=0, help="Red.")] = 1
    green: Annotated[bool, option("--green", help="Green.")] = False


seen = []


@grouped
def paint(
    name: Annotated[str, typer.Argument()] = "wall", *, colour: Colour, sampling: SamplingOptions
) -> None:
    """Paint."""
    seen.append((name, colour, sampling))


def run(*args):
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(paint)
    return CliRunner().invoke(app, list(args))


def test_typer_sees_the_options_of_the_groups():
    assert list(inspect.signature(paint).parameters) == [
        "name", "red", "green", "temperature", "top_k", "top_p", "min_p", "seed",
    ]  # fmt: skip
    output = run("--help").output
    assert "--red" in output and "--green" in output and "Paint." in output


def test_the_command_gets_the_groups():
    seen.clear()
    assert run("door", "--red", "5", "--top-k", "3").exit_code == 0
    assert seen == [("door", Colour(5, False), SamplingOptions(top_k=3))]


def test_a_wrong_value_is_refused_by_typer():
    done = run("--red", "-1")
    assert done.exit_code == 2 and "--red" in done.output


def test_groups_become_strategies_and_constraints():
    assert BeamOptions(beam=3).strategy().size == 3
    sampling = SamplingOptions(temperature=0.5, top_p=0.9)
    assert sampling.first_given == "--temperature"
    sample = sampling.sample(2, seed=7)
    assert (sample.count, sample.seed, sample.temperature, sample.top_p) == (2, 7, 0.5, 0.9)
    assert SamplingOptions(seed=1).sample(1, seed=7).seed == 1
    assert ConstraintOptions(forbid=["a"], no_repeat=2).constraints("b").no_repeat == 2


def test_text_that_is_not_utf8_is_an_error():
    with pytest.raises(OptionError, match="--forbid is not UTF-8"):
        ConstraintOptions(forbid=["\udcff"]).constraints()
