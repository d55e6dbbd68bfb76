"""Dropouts for recurrences: one mask for all time steps, whole words, or the recurrent weights themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
