"""Checks of lesson 8."""

import torch

import regard
from regard.evaluation import cost
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def window_mask(answer):
    for T, K in ((6, 2), (9, 4), (5, 20)):
        got = answer(T, K)
        if not isinstance(got, torch.Tensor) or got.dtype is not torch.bool:
            raise WrongAnswer("it must return a tensor of dtype torch.bool")
        expected = regard.Window.centered(K).dense(T, T).reshape(T, T)
        require_close(got.double(), expected.double(), f"the mask for T = {T}, K = {K}")
    return "it is the lecture's band for three sizes"


@exercise
def layers_needed(answer):
    for T, K in ((10, 2), (64, 32), (65, 32), (30, 8), (5, 20)):
        layer = regard.MultiHead(4, heads=1, mask=regard.Window.centered(K))
        require_close(answer(T, K), cost(layer, T).path_length, f"the number for T = {T}, K = {K}")
    return "it is the path length that regard counts, for five sizes"
