"""Dropout: elementwise (faster than torch's on a CPU), one mask for all time steps, whole embedding rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.tracing import transform

STEPS = 1 << 16  # resolution of the dropout probability where 16 random bits decide


class Dropout(nn.Dropout):
    """nn.Dropout that draws a quarter of the random numbers on a CPU: 64 random bits serve four elements.

    On a CPU, p is rounded to a multiple of 1/65536, unless that is 0 or 1. The bits come from torch's
    generator, so manual_seed and a saved generator state work as usual.
    """

    def forward(self, input: Tensor) -> Tensor:  # torch's argument name
        threshold = round(self.p * STEPS)
        if not self.training or threshold in (0, STEPS) or input.device.type != "cpu" or self.inplace:
            return super().forward(input)
        if torch.compiler.is_compiling() or transform() is not None:
            return super().forward(input)
        return input * _draw_from_bits(input, threshold)


def _draw_from_bits(x: Tensor, threshold: int) -> Tensor:
    """A mask in the shape of x: 1/(1 − p) with probability 1 − p, else 0, where p = threshold/65536."""
    n = x.numel()
    words = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:n].view(x.shape)
    return bits.ge_(threshold - STEPS // 2).to(x.dtype).mul_(STEPS / (STEPS - threshold))


class LockedDropout(nn.Dropout):
    """Variational dropout of (..., T, dim): one mask for all time steps (Gal & Ghahramani 2016)."""

    def forward(self, input: Tensor) -> Tensor:  # torch's argument name
        if not self.training or self.p == 0:
            return input
        return input * _draw(torch.empty_like(input[..., :1, :]), self.p)


def embedding_dropout(table: Tensor, p: float) -> Tensor:
    """Drop whole rows of an embedding table: a token everywhere in the batch (Merity et al. 2018, 4.3)."""
    return table * _draw(table.new_empty(len(table), 1), p)


def _draw(mask: Tensor, p: float) -> Tensor:
    """Fill the mask: 1/(1 − p) with probability 1 − p, else 0."""
    return mask.bernoulli_(1 - p).div_(1 - p) if p < 1 else mask.zero_()
