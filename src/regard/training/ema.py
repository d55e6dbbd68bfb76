"""Exponential moving average (EMA) of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Ema:
    """average ← d · average + (1 − d) · weights after every step t, with d = min(decay, (1 + t)/(10 + t)).

    The smaller d at the start makes the average forget the random initial weights.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.averages = [p.detach().clone() for p in self.weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the averages after step `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(self.averages, [p.detach() for p in self.weights], None)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by parameter name."""
        return dict(zip(self.names, self.averages, strict=True))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averages as its weights inside the context.

        Values are copied, tensors are not exchanged: optimizers, DDP and cuDNN hold references to them.
        """
        with torch.no_grad():
            originals = [p.detach().clone() for p in self.weights]
            for p, average in zip(self.weights, self.averages, strict=True):
                p.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for p, original in zip(self.weights, originals, strict=True):
                    p.copy_(original)
