"""Checks of lesson 17."""

import torch

from regard.lessons import exercise
from regard.lessons.exercises import require_close


@exercise
def fixed_weights(answer):
    x, true = torch.randn(200, 6), torch.randn(6)
    require_close(answer(x, x @ true), true, "the weights of a linear target", tolerance=1e-3)
    y = torch.randn(200)
    expected = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    require_close(answer(x, y), expected, "the weights of a random target", tolerance=1e-3)
    return "they are the least-squares weights"


@exercise
def read_marked(answer):
    for length in (1, 8, 100):
        numbers, place = torch.randn(16, length), torch.randint(0, length, (16, 1))
        marks = torch.zeros(16, length).scatter_(1, place, 1.0)
        got = answer(torch.stack([numbers, marks], -1))
        require_close(got, numbers.gather(1, place)[:, 0], f"the numbers at T = {length}", tolerance=0.01)
    return "it reads the marked number at lengths 1, 8 and 100"
