"""Checks of lesson 18."""

import torch

from regard.evaluation.explanation import comparisons
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def kendall(answer):
    require_close(answer([1.0, 2.0, 3.0], [10.0, 20.0, 30.0]), 1.0, "τ of the same order")
    require_close(answer([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]), -1.0, "τ of the reverse order")
    for count in (2, 5, 40):
        a, b = torch.randperm(count).double(), torch.randperm(count).double()
        expected = comparisons.kendall_tau(a, b)
        require_close(answer(a.tolist(), b.tolist()), expected, f"τ of {count} numbers")
    return "it agrees with kendall_tau of regard.evaluation on 2, 5 and 40 numbers"


@exercise
def total_variation(answer):
    if answer([0.5, 0.5], [0.5, 0.5]) != 0:
        raise WrongAnswer("the distance of equal distributions is not 0")
    require_close(answer([1.0, 0.0], [0.0, 1.0]), 1.0, "the distance of two certain, different answers")
    p, q = torch.rand(2, 7, dtype=torch.float64).softmax(-1)
    expected = float(comparisons.total_variation(p, q))
    require_close(answer(p.tolist(), q.tolist()), expected, "the distance of seven probabilities")
    return "it is 0 for equal distributions, 1 for disjoint ones, and right between"
