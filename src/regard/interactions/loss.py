"""Losses: squared error for regression, logistic loss for binary classification."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from regard.interactions.repeated_rows import Array


class InteractionLoss(Protocol):
    """A loss that least-squares solvers and SGD can minimise."""

    noise: float  # initial precision of the targets of `residual`
    learns: bool  # whether that precision may be learned

    def residual(self, y: Array, score: Array) -> Array:
        """The least-squares target minus the score: fitting it lowers the loss."""
        ...

    def slope(self, y: Array, score: Array) -> Array:
        """d loss / d score."""
        ...

    def total(self, y: Array, score: Array) -> float: ...


class Squared:
    """½ (y − s)²."""

    noise, learns = 1.0, True

    def residual(self, y: Array, score: Array) -> Array:
        return y - score

    def slope(self, y: Array, score: Array) -> Array:
        return score - y

    def total(self, y: Array, score: Array) -> float:
        return 0.5 * float(((y - score) ** 2).sum())


class Logistic:
    """log(1 + e^−s) for y = 1, log(1 + e^s) for y = 0.

    Its curvature is at most ¼, so ⅛ (s' − s − 4(y − p))² plus a constant is an upper bound that touches it at
    s (Böhning & Lindsay 1988): every least-squares step on that target lowers the loss.
    """

    noise, learns = 0.25, False

    def residual(self, y: Array, score: Array) -> Array:
        return -self.slope(y, score) / self.noise

    def slope(self, y: Array, score: Array) -> Array:
        return probability(score) - y

    def total(self, y: Array, score: Array) -> float:
        return float((np.logaddexp(0.0, score) - y * score).sum())


def probability(score: Array) -> Array:
    """1 / (1 + e^−s) without overflow."""
    return np.exp(-np.logaddexp(0.0, -score))
