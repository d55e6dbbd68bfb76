"""Checks of lesson 1."""

import torch

import regard
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def soft_lookup(answer):
    for temperature in (0.1, 1.0, 10.0):
        query, keys, values = torch.randn(5), torch.randn(7, 5), torch.randn(7, 3)
        expected = regard.lookup(query[None], keys, values, temperature=temperature)[0]
        require_close(answer(query, keys, values, temperature), expected, f"the answer at τ = {temperature}")
    far = answer(torch.zeros(2), torch.tensor([[1e3, 0.0], [1e3, 1.0]]), torch.eye(2), 1.0)
    if not bool(torch.isfinite(torch.as_tensor(far)).all()):
        raise WrongAnswer("it overflows if all keys are far away; subtract the largest score before exp")
    return "it agrees with regard.lookup at three temperatures, also for keys that are far away"


@exercise
def temperature_for(answer):
    for share in (0.5, 0.9):
        query, keys = torch.randn(4), torch.randn(6, 4)
        temperature = float(answer(query, keys, share))
        if not temperature > 0:
            raise WrongAnswer(f"a temperature must be positive, got {temperature:g}")
        largest = regard.lookup(query[None], keys, torch.eye(6), temperature=temperature).max()
        require_close(float(largest), share, f"the largest weight for share = {share}", tolerance=0.01)
    return "the largest weight is the requested share"
