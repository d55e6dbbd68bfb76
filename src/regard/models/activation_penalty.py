"""Activation penalties of recurrent language models, AR and TAR (Merity et al. 2018, section 4.6).

AR keeps the outputs of the last layer small, TAR keeps them similar from one time step to the next:

    α · mean(dropped²) + β · mean((outputs[t+1] − outputs[t])²)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ActivationPenalty:
    """Weights α and β of the two penalties; 0 switches one off."""

    activation: float = 0.0
    temporal: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.activation or self.temporal)

    def mean(self, outputs: Tensor, dropped: Tensor, inside: Tensor) -> Tensor:
        """The penalty of a batch: means over all features of all its tokens, in float32 at least.

        Args:
            outputs: (batch, T, width), the last layer before dropout.
            dropped: (batch, T, width), the same after dropout.
            inside: (batch, T), True at tokens, False at padding.
        """
        penalty = torch.zeros((), dtype=_accumulator(outputs), device=outputs.device)
        if self.activation:
            penalty = penalty + self.activation * _mean_square(dropped, inside)
        if self.temporal and outputs.shape[1] > 1:
            change = _widen(outputs[:, 1:]) - _widen(outputs[:, :-1])
            penalty = penalty + self.temporal * _mean_square(change, inside[:, 1:])
        return penalty


def _mean_square(x: Tensor, inside: Tensor) -> Tensor:
    squares = _widen(x).square().mean(-1)  # (batch, T)
    return squares.where(inside, 0.0).sum() / inside.sum().clamp(min=1)


def _widen(x: Tensor) -> Tensor:
    """Half precision to float32: squares of small differences would lose most of their digits."""
    return x.to(_accumulator(x))


def _accumulator(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
