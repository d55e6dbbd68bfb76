"""Checks of lesson 4."""

import torch

import regard
from regard.lessons import exercise
from regard.lessons.exercises import require_close


@exercise
def self_attention(answer):
    for T, M, d in ((3, 4, 4), (7, 5, 9)):
        X, maps = torch.randn(T, M), torch.randn(3, M, d)
        Q, K, V = X @ maps
        require_close(answer(X, *maps), regard.attend(Q, K, V), f"the output for T = {T}, d = {d}")
    return "it agrees with regard.attend"


@exercise
def sliced_heads(answer):
    for H, size, L in ((2, 3, 4), (4, 2, 2)):
        X, maps = torch.randn(5, H * size), torch.randn(3, H, size, L)
        slices = X.unflatten(-1, (H, size)).transpose(0, 1)  # (H, T, M/H)
        Q, K, V = slices @ maps
        expected = regard.attend(Q, K, V).transpose(0, 1).flatten(1)
        require_close(answer(X, *maps), expected, f"the output for H = {H}")
    return "each head sees its slice, and the outputs are concatenated in order"
