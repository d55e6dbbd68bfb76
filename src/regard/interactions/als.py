"""Alternating least squares (ALS): each factor in turn is a ridge regression with the others fixed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from regard.interactions.loss import InteractionLoss
from regard.interactions.regularization import CG_STEPS, WeightGroup
from regard.interactions.repeated_rows import Array

# Iterations before penalties are learned: factors still near zero would get penalties that keep them there.
WARM_UP = 5


class AlsModel(ABC):
    """A model on its training rows.

    In all methods `e` is the residual of the targets and `noise` is their precision, 1 / variance.
    """

    steps = CG_STEPS  # conjugate-gradient steps for the linear part

    def __init__(
        self, rows: int, linear: Sequence[WeightGroup], factors: Sequence[WeightGroup], intercept: bool
    ) -> None:
        self.rows, self.linear, self.factors = rows, list(linear), list(factors)
        self.intercept, self.fit_intercept = 0.0, intercept

    @property
    def groups(self) -> list[WeightGroup]:
        """All weights: linear part, then factors."""
        return [*self.linear, *self.factors]

    def score(self) -> Array:
        """Predictions for all rows, (rows,)."""
        scores = np.full(self.rows, self.intercept)
        for group in self.linear:
            scores += group.at(0)[0]
        return scores + sum(self.product(k) for k in range(self.rank))

    @property
    def rank(self) -> int:
        """Number of factors K."""
        return len(self.factors[0].mean) if self.factors else 0

    def update(self, e: Array, noise: float) -> tuple[Array, float]:
        """Update every weight once; return the new residual and the summed variance of all predictions."""
        total_variance = 0.0
        if self.fit_intercept:
            self.intercept += float(e.mean())
            e = e - e.mean()
        for group in self.linear:
            e = e + group.at(0)[0]
            group.solve(0, np.full(self.rows, noise), noise * e, self.steps)
            mean, variance = group.at(0)
            e, total_variance = e - mean, total_variance + float(variance.sum())
        for k in range(self.rank):
            e = e + self.product(k)
            self.fit_factor(k, e, noise)
            e, total_variance = e - self.product(k), total_variance + self.variance(k)
        return e, total_variance

    def scale(self, unit: float) -> None:
        """Rescale the model to targets `unit` times as large."""
        self.intercept *= unit
        for group in self.linear:
            group.scale(unit)
        for group in self.factors:
            group.scale(unit**0.5)  # predictions multiply two of them

    @abstractmethod
    def product(self, k: int) -> Array:
        """Contribution of factor k to the score of every row, (rows,)."""

    @abstractmethod
    def variance(self, k: int) -> float:
        """Variance of that contribution, summed over all rows."""

    @abstractmethod
    def fit_factor(self, k: int, e: Array, noise: float) -> None:
        """Fit factor k to the residual without it."""


class LinearAls(AlsModel):
    """No factors: one ridge regression, solved to convergence."""

    steps = 1000

    def product(self, k: int) -> Array:
        raise NotImplementedError

    fit_factor = variance = product  # type: ignore[assignment]


class BilinearAls(AlsModel):
    """(Wx₁)ᵀ(Vx₂): matrix factorisation for x₁ = user, x₂ = item; Schmidt-Thieme's factorisation machine
    for x₁ = x₂.
    """

    def product(self, k: int) -> Array:
        left, right = self.factors
        return left.at(k)[0] * right.at(k)[0]

    def variance(self, k: int) -> float:
        (p, p_var), (q, q_var) = (group.at(k) for group in self.factors)
        return float((p * p + p_var) @ q_var + (q * q) @ p_var)

    def fit_factor(self, k: int, e: Array, noise: float) -> None:
        left, right = self.factors
        for group, other in ((left, right), (right, left)):
            mean, variance = other.at(k)
            group.solve(k, noise * (mean * mean + variance), noise * mean * e)


def run_als(
    model: AlsModel,
    y: Array,
    loss: InteractionLoss,
    max_iter: int,
    tol: float,
) -> int:
    """Iterate until scores change by less than `tol` target standard deviations; return the iterations.

    If the noise is learned, targets are scaled to unit variance during fitting, so their scale has no
    influence.
    """
    learn_penalties = any(group.prior.learns for group in model.groups)
    learn_noise, warm_up = loss.learns and learn_penalties, WARM_UP if learn_penalties else 0
    std = float(np.std(y)) or 1.0
    unit, threshold = (std, tol) if learn_noise else (1.0, tol * std)
    y, noise, scores = y / unit, loss.noise, model.score()
    iteration = 0
    for iteration in range(1, max_iter + 1):
        e, variance = model.update(loss.residual(y, scores), noise)
        if iteration > warm_up:
            for group in model.groups:
                group.learn()
        if learn_noise:
            noise = (len(y) + 1.0) / (float(e @ e) + variance + 0.01)
        new = model.score()
        change, scores = float(np.sqrt(np.mean((new - scores) ** 2))), new
        if iteration > warm_up + 1 and change < threshold:
            break
    model.scale(unit)
    return iteration
