"""Checks of lesson 5."""

import torch

from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def equivariance_violation(answer):
    X, order = torch.randn(6, 3), torch.tensor([2, 0, 1, 5, 3, 4])  # not its own inverse
    weights = torch.randn(3, 4)
    require_close(answer(lambda x: x @ weights, X, order), 0.0, "the violation of a linear layer")
    for name, layer in (("a cumulative sum", lambda x: x.cumsum(0)), ("a shift", lambda x: x.roll(1, 0))):
        expected = (layer(X[order]) - layer(X)[order]).abs().max()
        if abs(float(answer(layer, X, order))) < 1e-6:
            raise WrongAnswer(f"it is 0 for {name}, which depends on the order")
        require_close(float(answer(layer, X, order)), float(expected), f"the violation of {name}")
    return "0 for a linear layer, and the right size for two layers that depend on the order"


@exercise
def position_channel(answer):
    for T in (3, 5):
        X = torch.randn(T, 2)
        expected = torch.cat([X, torch.arange(1.0, T + 1)[:, None]], 1)
        require_close(answer(X), expected, f"the result for T = {T}")
    return "the position is the last feature"
