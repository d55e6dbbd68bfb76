"""Checks of lesson 7."""

import torch

import regard
from regard.attention import Documents
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def causal_attention(answer):
    for T in (1, 4, 9):
        Q, K, V = torch.randn(3, T, 6)
        expected = regard.attend(Q, K, V, mask=regard.Causal())
        require_close(answer(Q, K, V), expected, f"the output for T = {T}")
    return "it agrees with regard.attend for three lengths"


@exercise
def packing_mask(answer):
    for lengths in ([3], [2, 3], [1, 4, 2]):
        got = answer(lengths)
        T = sum(lengths)
        if not isinstance(got, torch.Tensor) or got.dtype is not torch.bool:
            raise WrongAnswer("it must return a tensor of dtype torch.bool")
        expected = (regard.Causal() & Documents.of_lengths(lengths)).dense(T, T).reshape(T, T)
        require_close(got.double(), expected.double(), f"the mask for lengths {lengths}")
    return "a token sees itself and the earlier tokens of its document"
