"""Checks of lesson 19."""

import torch

import regard
from regard.lessons import exercise
from regard.lessons.exercises import require_close


@exercise
def embed_frames(answer):
    for length, channels, width in ((5, 3, 8), (40, 4, 32)):
        x, W = torch.randn(length, channels), torch.randn(width, channels)
        expected = regard.Sinusoidal(width)((x @ W.T)[None])[0]
        require_close(answer(x, W), expected, f"X̃ for T = {length}, K = {width}", tolerance=1e-3)
    return "it agrees with regard.Sinusoidal"


@exercise
def mean_pool(answer):
    states, lengths = torch.randn(3, 6, 4), torch.tensor([6, 1, 4])
    expected = torch.stack([row[:n].mean(0) for row, n in zip(states, lengths.tolist(), strict=True)])
    require_close(answer(states, lengths), expected, "the mean over the real frames")
    states[1, 1:], states[2, 4:] = 1e4, -1e4
    require_close(answer(states, lengths), expected, "the mean with other padding", tolerance=1e-2)
    return "padding has no influence"
