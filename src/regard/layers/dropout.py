"""Dropouts: the plain one, quick on a CPU; one mask for all time steps; whole words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.tracing import transform

STEPS = 1 << 16  # of the probability of a dropout on a CPU


class Dropout(nn.Dropout):
    """torch's dropout; on a CPU with a quarter of the random numbers, four from each 64 bits.

    So p is rounded to a multiple of 1/65536, unless that were 0 or 1. The bits come from torch's generator: its seed and
    saved state hold here too.
    """

    def forward(self, input: Tensor) -> Tensor:  # the name is torch's
        cut = round(self.p * STEPS)
        if not self.training or cut in (0, STEPS) or input.device.type != "cpu" or self.inplace:
            return super().forward(input)
        if torch.compiler.is_compiling() or transform() is not None:
            return super().forward(input)
        return input * _keep(input, cut)


def _keep(x: Tensor, cut: int) -> Tensor:
    """1/(1 − p) with probability 1 − p, else 0, in the shape of x, for p = cut/65536 above 0 and below 1."""
    n = x.numel()
    bits = (
        torch.empty((n + 3) // 4, dtype=torch.int64)
        .random_(-(2**63), None)
        .view(torch.int16)[:n]
        .view(x.shape)
    )
    return bits.ge_(cut - STEPS // 2).to(x.dtype).mul_(STEPS / (STEPS - cut))


class Locked(nn.Dropout):
    """Dropout that draws one mask per sequence and keeps it over time (Gal & Ghahramani 2016); x is (..., T, dim)."""

    def forward(self, input: Tensor) -> Tensor:  # the name is torch's
        if not self.training or self.p == 0:
            return input
        return input * _draw(torch.empty_like(input[..., :1, :]), self.p)


def drop_words(table: Tensor, p: float) -> Tensor:
    """The table with whole rows dropped: a word drawn so is missing everywhere in the batch (Merity et al. 2018, 4.3)."""
    return table * _draw(table.new_empty(len(table), 1), p)


def _draw(mask: Tensor, p: float) -> Tensor:
    """Fill the mask: 1/(1 − p) with probability 1 − p, else 0."""
    return mask.bernoulli_(1 - p).div_(1 - p) if p < 1 else mask.zero_()
