"""Checks of lesson 14."""

import torch

from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def vaswani_rate(answer):
    peak = answer(4000, 512, 4000)
    require_close(peak, 512**-0.5 * 4000**-0.5, "the rate at the end of the warm-up", tolerance=1e-7)
    if not answer(1, 512, 4000) < answer(2000, 512, 4000) < peak > answer(8000, 512, 4000):
        raise WrongAnswer("the rate does not rise up to the warm-up and fall after it")
    for step in (1, 10, 100_000):
        expected = 256**-0.5 * min(step**-0.5, step * 300**-1.5)
        require_close(answer(step, 256, 300), expected, f"the rate of step {step}", tolerance=1e-7)
    return "it rises linearly to the warm-up and falls with the root of the step"


@exercise
def sublayer(answer):
    x = torch.randn(2, 5, 8)
    f, norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
    torch.nn.init.normal_(norm.weight)
    with torch.no_grad():
        expected = {"post": norm(x + f(x)), "pre": x + f(norm(x)), "none": x + f(x)}
        for where, value in expected.items():
            require_close(answer(x, f, norm, where), value, f"the output with {where}")
    return "post normalises the sum, pre the input of f, none nothing"
