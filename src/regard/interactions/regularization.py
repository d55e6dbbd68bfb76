"""Weights that are fitted together, and how strongly they are held near zero: by a number given, or by one learned from them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from regard.interactions.repeated_rows import Array, RepeatedRows, sum_by_index
from regard.interactions.ridge import ridge

CG_STEPS = 5  # of conjugate gradients for one factor in one sweep; the next sweep goes on from there


class Prior(Protocol):
    """What is believed about weights before any data."""

    learns: bool
    start: float  # precision (1 / variance) to begin with

    def uncertainty(self, curvature: Array) -> Array:
        """The variance that is left to weights with that curvature."""
        ...

    def precision(self, count: NDArray[np.float64], squares: Array, now: Array) -> Array:
        """The precision of a block of weights after a sweep."""
        ...


class FixedPenalty:
    """A ridge penalty λ as given: the weights are the best single guess (alternating least squares)."""

    learns = False

    def __init__(self, penalty: float) -> None:
        self.start = penalty

    def uncertainty(self, curvature: Array) -> Array:
        return np.zeros_like(curvature)

    def precision(self, count: NDArray[np.float64], squares: Array, now: Array) -> Array:
        return now


class LearnedPenalty:
    """Mean-field variational inference: every weight has a mean and a variance, and each block of weights learns its own ridge.

    Steps are those of alternating least squares with the variances added to the squares, so a factor seen through few ratings
    weighs less (Lim & Teh 2007). A form that is linear in each weight predicts its mean from the means, so one model is kept.
    """

    learns, start = True, 2.0

    def uncertainty(self, curvature: Array) -> Array:
        return 1.0 / curvature

    def precision(self, count: NDArray[np.float64], squares: Array, now: Array) -> Array:
        return (1.0 + count) / (0.01 + squares)  # a Gamma prior worth one weight of 0.1


class WeightGroup:
    """`factors` weight vectors over the columns of the same rows; columns of one block share their precision."""

    def __init__(
        self, rows: RepeatedRows, factors: int, blocks: NDArray[np.int64], prior: Prior, mean: Array
    ) -> None:
        self.rows, self.blocks, self.prior, self.mean = rows, blocks, prior, mean
        self.penalty = np.full((factors, int(blocks.max(initial=0)) + 1), prior.start)
        self.variance = np.tile(prior.uncertainty(np.full(rows.width, 100.0)), (factors, 1))
        self._count = np.bincount(blocks[rows.seen], minlength=self.penalty.shape[1]).astype(np.float64)
        self.value = (
            np.stack([rows.table @ w for w in mean]) if factors else np.zeros((0, rows.table.shape[0]))
        )
        self.spread = np.stack([rows.squared @ v for v in self.variance]) if factors else self.value

    def at(self, k: int) -> tuple[Array, Array]:
        """Factor k on every row: its mean and its variance."""
        return self.rows.spread(self.value[k]), self.rows.spread(self.spread[k])

    def solve(self, k: int, weight: Array, pull: Array, steps: int = CG_STEPS) -> None:
        """The best factor k where row n is to be pull_n / weight_n, with weight_n (both times the precision of the targets)."""
        rows = self.rows
        penalty = self.penalty[k][self.blocks]
        self.put(k, *ridge(rows, rows.gather(weight), rows.gather(pull), penalty, self.mean[k], steps))

    def put(self, k: int, w: Array, curvature: Array) -> None:
        self.mean[k], self.variance[k] = w, self.prior.uncertainty(curvature)
        self.value[k], self.spread[k] = self.rows.table @ w, self.rows.squared @ self.variance[k]

    def learn(self) -> None:
        """New precisions from the weights that some row has seen."""
        for k in range(len(self.mean)):
            squares = np.where(self.rows.seen, self.mean[k] ** 2 + self.variance[k], 0.0)
            total = sum_by_index(self.blocks, squares, self.penalty.shape[1])
            self.penalty[k] = self.prior.precision(self._count, total, self.penalty[k])

    def scale(self, unit: float) -> None:
        """All weights times `unit`."""
        self.mean, self.value = self.mean * unit, self.value * unit
        self.variance, self.spread = self.variance * unit**2, self.spread * unit**2

    def size(self) -> float:
        """½ Σ λ w²: this part of what is minimised."""
        return 0.5 * float((self.penalty[:, self.blocks] * self.mean**2).sum())
