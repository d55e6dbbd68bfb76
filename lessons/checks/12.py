"""Checks of lesson 12."""

import torch

from regard.lessons import exercise
from regard.lessons.exercises import require_close


@exercise
def step_factor(answer):
    for factor, steps in ((0.9, 20), (0.5, 60), (1.1, 5)):
        gradients = 0.3 * factor ** torch.arange(steps - 1, -1, -1, dtype=torch.float64)
        require_close(answer(gradients), factor, f"the factor for {steps} words")
    return "it finds the factor, for gradients that vanish and for those that explode"


@exercise
def jacobian(answer):
    W, inputs = torch.randn(4, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)

    def last_state(h: torch.Tensor) -> torch.Tensor:
        for x in inputs:
            h = torch.tanh(W @ h + x)
        return h

    start = torch.randn(4, dtype=torch.float64)
    states, h = [], start
    for x in inputs:
        h = torch.tanh(W @ h + x)
        states.append(h)
    expected = torch.autograd.functional.jacobian(last_state, start)
    require_close(answer(W, torch.stack(states)), expected, "the Jacobian over five steps")
    return "it equals the Jacobian of autograd"
