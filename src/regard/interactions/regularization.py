"""Groups of weights and their L2 penalty: fixed, or learned from the data."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from regard.interactions.repeated_rows import Array, RepeatedRows, sum_by_index
from regard.interactions.ridge import ridge

CG_STEPS = 5  # conjugate-gradient steps per factor and iteration; the next iteration continues from there


class Prior(Protocol):
    """Gaussian prior of the weights; its precision (1 / variance) is the ridge penalty."""

    learns: bool  # whether the precision is learned
    initial: float  # precision at the start

    def posterior_variance(self, curvature: Array) -> Array:
        """Return the posterior variance of weights, given the second derivative of the objective."""
        ...

    def precision(self, count: NDArray[np.float64], squares: Array, current: Array) -> Array:
        """Return the new precision of each block, from the number and the sum of squares of its weights."""
        ...


class FixedPenalty:
    """A fixed ridge penalty λ: weights are point estimates (ALS)."""

    learns = False

    def __init__(self, penalty: float) -> None:
        self.initial = penalty

    def posterior_variance(self, curvature: Array) -> Array:
        return np.zeros_like(curvature)

    def precision(self, count: NDArray[np.float64], squares: Array, current: Array) -> Array:
        return current


class LearnedPenalty:
    """Mean-field variational inference: weights have a mean and a variance, and blocks learn their penalty.

    The updates are those of ALS with variances added to the squared weights, so a factor that is uncertain,
    because few ratings have it, counts less (Lim & Teh 2007). Models are linear in each weight, so predicting
    the mean needs only the means.
    """

    learns, initial = True, 2.0

    def posterior_variance(self, curvature: Array) -> Array:
        return 1.0 / curvature

    def precision(self, count: NDArray[np.float64], squares: Array, current: Array) -> Array:
        return (1.0 + count) / (0.01 + squares)  # Gamma hyperprior: acts as one extra weight of size 0.1


class WeightGroup:
    """`factors` weight vectors over the columns of a matrix; columns of one block share their penalty."""

    def __init__(
        self, rows: RepeatedRows, factors: int, blocks: NDArray[np.int64], prior: Prior, mean: Array
    ) -> None:
        self.rows, self.blocks, self.prior, self.mean = rows, blocks, prior, mean
        self.penalty = np.full((factors, int(blocks.max(initial=0)) + 1), prior.initial)
        self.variance = np.tile(prior.posterior_variance(np.full(rows.width, 100.0)), (factors, 1))
        self._count = np.bincount(blocks[rows.seen], minlength=self.penalty.shape[1]).astype(np.float64)
        self.value = (
            np.stack([rows.table @ w for w in mean]) if factors else np.zeros((0, rows.table.shape[0]))
        )
        self.value_variance = np.stack([rows.squared @ v for v in self.variance]) if factors else self.value

    def at(self, k: int) -> tuple[Array, Array]:
        """Return the value of factor k on every row: its mean and variance, each (rows,)."""
        return self.rows.expand(self.value[k]), self.rows.expand(self.value_variance[k])

    def solve(self, k: int, weight: Array, weighted_target: Array, steps: int = CG_STEPS) -> None:
        """Fit factor k by weighted ridge regression.

        Args:
            k: the factor.
            weight: weight of each row, including the precision of its target.
            weighted_target: target of each row times its weight.
            steps: of conjugate gradient.
        """
        rows = self.rows
        penalty = self.penalty[k][self.blocks]
        self.set(
            k, *ridge(rows, rows.gather(weight), rows.gather(weighted_target), penalty, self.mean[k], steps)
        )

    def set(self, k: int, w: Array, curvature: Array) -> None:
        """Set factor k, and its value on every row of the table."""
        self.mean[k], self.variance[k] = w, self.prior.posterior_variance(curvature)
        self.value[k], self.value_variance[k] = self.rows.table @ w, self.rows.squared @ self.variance[k]

    def learn(self) -> None:
        """Update the penalties from the weights of columns that occur in some row."""
        for k in range(len(self.mean)):
            squares = np.where(self.rows.seen, self.mean[k] ** 2 + self.variance[k], 0.0)
            total = sum_by_index(self.blocks, squares, self.penalty.shape[1])
            self.penalty[k] = self.prior.precision(self._count, total, self.penalty[k])

    def scale(self, unit: float) -> None:
        """Multiply all weights by `unit`."""
        self.mean, self.value = self.mean * unit, self.value * unit
        self.variance, self.value_variance = self.variance * unit**2, self.value_variance * unit**2

    def penalty_term(self) -> float:
        """Return ½ Σ λ w², the penalty of these weights in the objective."""
        return 0.5 * float((self.penalty[:, self.blocks] * self.mean**2).sum())
