"""Checks of lesson 3."""

import torch

from regard.lessons import exercise
from regard.lessons.exercises import require_close


@exercise
def factorization_machine(answer):
    x, W, V = torch.randn(6), torch.randn(3, 6), torch.randn(3, 6)
    require_close(answer(x, W, V), x @ W.T @ V @ x, "y for M = 6")
    x = torch.randn(200_000).double()
    W, V = torch.randn(2, 2, 200_000).double() / 400
    require_close(answer(x, W, V), (W @ x) @ (V @ x), "y for M = 200,000")
    return "it is right, and works for 200,000 predictors"


@exercise
def attention_scores(answer):
    for T, L in ((4, 3), (2, 8)):
        X, W, V = torch.randn(T, 5), torch.randn(L, 5), torch.randn(L, 5)
        expected = torch.einsum("tm,lm,ln,sn->ts", X, W, V, X) / L**0.5
        require_close(answer(X, W, V), expected, f"the matrix for T = {T}, L = {L}")
    return "queries are rows, keys are columns, and the scale is √L"
