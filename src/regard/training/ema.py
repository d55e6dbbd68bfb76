"""An exponential mean of the weights: a smoother model than any single step's, at the price of one more copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Ema:
    """mean ← d · mean + (1 − d) · weights after every step; d grows from near 0 to `decay` as min(decay, (1 + t)/(10 + t)),
    so that the first, random weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.means = [p.detach().clone() for p in self.weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step `step`, counted from 1."""
        keep = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(keep)(self.means, [p.detach() for p in self.weights], None)

    def tensors(self) -> dict[str, Tensor]:
        """The means by the names of the parameters."""
        return dict(zip(self.names, self.means, strict=True))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the model has the means as its weights. Values are copied, not tensors swapped: optimizers, DDP and cuDNN
        hold on to the tensors themselves.
        """
        with torch.no_grad():
            kept = [p.detach().clone() for p in self.weights]
            for p, mean in zip(self.weights, self.means, strict=True):
                p.copy_(mean)
        try:
            yield
        finally:
            with torch.no_grad():
                for p, own in zip(self.weights, kept, strict=True):
                    p.copy_(own)
