"""Checks of lesson 6."""

import torch

import regard
from regard.lessons import WrongAnswer, exercise
from regard.lessons.exercises import require_close


@exercise
def alibi_slopes(answer):
    for heads in (2, 4, 8, 16):
        slopes = answer(heads)
        if not isinstance(slopes, list | tuple | torch.Tensor):
            raise WrongAnswer(f"it must return a list, got {type(slopes).__name__}")
        zeros = torch.zeros(heads, 2, 1)
        expected = -regard.weights(zeros, zeros, bias=regard.ALiBi(heads), stage="biased")[:, 1, 0]
        require_close(torch.as_tensor(slopes), expected, f"the list for {heads} heads")
    return "they are the slopes of ALiBi for 2, 4, 8 and 16 heads"


@exercise
def sinusoidal_table(answer):
    for length, width in ((5, 4), (30, 16)):
        expected = regard.Sinusoidal(width).table(length)
        require_close(answer(length, width), expected, f"the table for width {width}")
    return "sine and cosine alternate, with the right rates"
