"""Checks of lesson 2."""

import torch

from regard.lessons import exercise
from regard.lessons.exercises import require_close


@exercise
def scale_for(answer):
    for variance_q, variance_k, d in ((1.0, 1.0, 64), (4.0, 0.25, 10), (2.0, 3.0, 7)):
        expected = (d * variance_q * variance_k) ** -0.5
        require_close(
            answer(variance_q, variance_k, d), expected, f"the factor for {variance_q}, {variance_k}, d = {d}"
        )
    return "the scaled scores have variance 1 for three pairs of variances"


@exercise
def softmax_jacobian(answer):
    for n in (2, 5):
        scores = torch.randn(n)
        expected = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, 0), scores)
        require_close(answer(scores), expected, f"the matrix for {n} scores")
    return "it is the derivative that autograd finds"
