"""Schedules against the formulas of the papers."""

import math

import pytest

from regard.errors import RecipeError
from regard.recipe import schema
from regard.training import schedule


def test_the_inverse_square_root_is_equation_3_of_vaswani():
    dim, warmup = 512, 4000
    peak = 1 / math.sqrt(dim * warmup)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        paper = dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert schedule.inverse_sqrt(step, peak, warmup) == pytest.approx(paper, rel=1e-12)


def test_the_cosine_goes_from_the_peak_to_the_floor():
    rate = lambda step: schedule.cosine(step, 1.0, 100, 1100, 0.1)  # noqa: E731
    assert rate(1) == 0.01 and rate(50) == 0.5 and rate(100) == 1.0
    assert rate(600) == pytest.approx(0.55)  # half way: the mean of both
    assert rate(350) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert rate(1100) == pytest.approx(0.1) and rate(5000) == pytest.approx(0.1)


def test_the_constant_rises_in_a_straight_line_and_stays():
    assert [schedule.constant(step, 2.0, 4) for step in (1, 2, 3, 4, 5, 99)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert schedule.constant(1, 2.0, 0) == 2.0


def test_the_plateau_cuts_after_more_than_patience_validations_in_vain():
    plateau = schedule.Plateau(1.0, warmup=2, factor=0.5, patience=1, floor=0.2)
    assert plateau.rate(1) == 0.5 and plateau.rate(9) == 1.0
    for better, rate in (
        (True, 1.0),
        (False, 1.0),
        (False, 0.5),
        (False, 0.5),
        (True, 0.5),
        (False, 0.5),
        (False, 0.25),
    ):
        plateau.observe(better)
        assert plateau.rate(9) == rate
    for _ in range(4):
        plateau.observe(False)
    assert plateau.rate(9) == 0.2  # the floor


def test_a_restored_plateau_goes_on_where_the_other_was():
    one, other = schedule.Plateau(1.0, patience=1), schedule.Plateau(1.0, patience=1)
    for better in (True, False, False, False):
        one.observe(better)
    other.restore(one.state())
    one.observe(False)
    other.observe(False)
    assert one == other and one.rate(5) == 0.25


def test_every_kind_of_a_recipe_has_its_schedule():
    made = [
        schedule.make(s, 0.5, 100)
        for s in (schema.InverseSqrt(), schema.Cosine(), schema.Plateau(), schema.Constant())
    ]
    assert [type(s).__name__ for s in made] == ["InverseSqrt", "Cosine", "Plateau", "Constant"]
    assert all(s.state() == {} for s in (made[0], made[3])) and made[1].state() == {"steps": 100}


def test_a_cosine_keeps_the_length_it_began_with():
    """Counted anew on another number of processes the length would be another, and the rate would jump."""
    one, other = schedule.Cosine(1.0, 5, 100), schedule.Cosine(1.0, 5, 200)
    other.restore(one.state())
    assert [one.rate(step) for step in (5, 50, 100)] == [other.rate(step) for step in (5, 50, 100)]


def test_a_cosine_without_an_end_is_refused():
    with pytest.raises(RecipeError, match="training.steps"):
        schedule.make(schema.Cosine(), 0.5, None)
