"""Schedules against the formulas of the papers."""

import math
from typing import Literal

import pytest

from regard.errors import RecipeError
from regard.optimization.schedules import (
    SCHEDULES,
    Constant,
    CosineDecay,
    InverseSqrt,
    LearningRate,
    Plateau,
    ScheduleOptions,
)
from regard.recipe.loading import dump_recipe, load_recipe


def rates(schedule, steps, peak=1.0, length=None):
    rate = LearningRate(schedule, peak, length)
    return [rate.at(step) for step in steps]


def test_inverse_sqrt_is_equation_3_of_vaswani():
    dim, warmup = 512, 4000
    peak = 1 / math.sqrt(dim * warmup)
    steps = (1, 100, 3999, 4000, 4001, 100_000)
    paper = [dim**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in steps]
    assert rates(InverseSqrt(warmup=warmup), steps, peak) == pytest.approx(paper, rel=1e-12)


def test_cosine_decays_from_the_peak_to_the_floor():
    steps = (1, 50, 100, 350, 600, 1100, 5000)
    quarter = 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2
    expected = [0.01, 0.5, 1.0, quarter, 0.55, 0.1, 0.1]
    assert rates(CosineDecay(warmup=100, floor=0.1), steps, length=1100) == pytest.approx(expected)


def test_constant_has_linear_warmup():
    assert rates(Constant(warmup=4), (1, 2, 3, 4, 5, 99), peak=2.0) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert rates(Constant(), (1,), peak=2.0) == [2.0]


def test_plateau_reduces_the_rate_after_more_than_patience_validations():
    rate = LearningRate(Plateau(warmup=2, factor=0.5, patience=1, floor=0.2), 1.0)
    assert rate.at(1) == 0.5 and rate.at(9) == 1.0
    improvements = [
        (True, 1.0),
        (False, 1.0),
        (False, 0.5),
        (False, 0.5),
        (True, 0.5),
        (False, 0.5),
        (False, 0.25),
    ]
    for improved, expected in improvements:
        rate.observe(improved)
        assert rate.at(9) == expected
    for _ in range(4):
        rate.observe(False)
    assert rate.at(9) == 0.2  # the floor


def test_a_restored_plateau_continues():
    original, restored = (LearningRate(Plateau(patience=1), 1.0) for _ in range(2))
    for improved in (True, False, False, False):
        original.observe(improved)
    restored.restore(original.state())
    original.observe(False)
    restored.observe(False)
    assert original.state() == restored.state() and original.at(5) == restored.at(5) == 0.25


def test_a_restored_cosine_keeps_its_length():
    """On another number of processes the length would differ, and the rate would jump."""
    original, restored = (
        LearningRate(CosineDecay(warmup=5), 1.0, 100),
        LearningRate(CosineDecay(warmup=5), 1.0, 200),
    )
    restored.restore(original.state())
    assert [original.at(step) for step in (5, 50, 100)] == [restored.at(step) for step in (5, 50, 100)]


def test_cosine_without_a_length_is_refused():
    with pytest.raises(RecipeError, match=r"schedule.kind cosine .* set training.steps"):
        LearningRate(CosineDecay(), 0.5, None)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_chosen_by_its_registered_name(name):
    recipe = load_recipe({"data": "multi30k", "schedule": {"kind": name}})
    assert type(recipe.schedule) is SCHEDULES[name] and recipe.schedule.kind == name
    assert LearningRate(recipe.schedule, 0.5, 100).at(1) > 0


@pytest.fixture
def _halving():
    """A user-defined schedule, registered during a test."""

    @SCHEDULES.add("halving")
    class Halving(ScheduleOptions):
        """Half the rate every `every` steps."""

        kind: Literal["halving"] = "halving"
        every: int = 10

        def rate(self, step, context):
            return context.peak * 0.5 ** (step // self.every)

    yield
    SCHEDULES.remove("halving")


@pytest.mark.usefixtures("_halving")
def test_a_registered_schedule_is_valid_in_recipes_with_its_own_keys():
    recipe = load_recipe({"data": "multi30k", "schedule": {"kind": "halving", "every": 3}})
    assert LearningRate(recipe.schedule, 1.0).at(6) == 0.25
    assert "kind: halving" in dump_recipe(recipe) and "every: 3" in dump_recipe(recipe)
    with pytest.raises(RecipeError, match="schedule has no key 'evry'; did you mean schedule.every"):
        load_recipe({"data": "multi30k", "schedule": {"kind": "halving", "evry": 3}})
    with pytest.raises(RecipeError, match="schedule.every is 'x', and must be an integer"):
        load_recipe({"data": "multi30k", "schedule": {"kind": "halving", "every": "x"}})


def test_an_unknown_schedule_names_the_registered_ones():
    with pytest.raises(
        RecipeError, match=r"schedule.kind is 'cosin', and must be one of .*did you mean 'cosine'"
    ):
        load_recipe({"data": "multi30k", "schedule": {"kind": "cosin"}})
