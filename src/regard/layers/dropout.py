"""Dropouts: the plain one, quick on a CPU; one mask for all time steps; whole words."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """torch's dropout; on a CPU with a quarter of the random numbers, four from each 64 bits.

    So p is rounded to a multiple of 1/65536. The bits come from torch's generator: its seed and saved state hold here too.
    """

    def forward(self, input: Tensor) -> Tensor:  # the name is torch's
        if not self.training or self.p == 0 or input.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(input)
        return input * _keep(input, self.p)


def _keep(x: Tensor, p: float) -> Tensor:
    """1/(1 − p) with probability 1 − p, else 0, in the shape of x."""
    cut, n = round(p * 65536), x.numel()
    bits = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:n].view(x.shape)
    return bits.ge_(cut - 32768).to(x.dtype).mul_(65536 / max(1, 65536 - cut))


class Locked(nn.Dropout):
    """Dropout that draws one mask per sequence and keeps it over time (Gal & Ghahramani 2016); x is (..., T, dim)."""

    def forward(self, input: Tensor) -> Tensor:  # the name is torch's
        if not self.training or self.p == 0:
            return input
        mask = torch.empty_like(input[..., :1, :]).bernoulli_(1 - self.p).div_(1 - self.p)
        return input * mask


def drop_words(table: Tensor, p: float) -> Tensor:
    """The table with whole rows dropped: a word drawn so is missing everywhere in the batch (Merity et al. 2018, 4.3)."""
    return table * table.new_empty(len(table), 1).bernoulli_(1 - p).div_(1 - p)
