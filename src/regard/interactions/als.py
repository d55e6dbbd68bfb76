"""Alternating least squares: each factor in turn is a ridge regression while the others stand still."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from regard.interactions.loss import Loss
from regard.interactions.regularization import CG_STEPS, WeightGroup
from regard.interactions.repeated_rows import Array

WARM_UP = (
    5  # sweeps before the ridges are learned: a factor that has found nothing yet would be held at nothing
)


class AlsModel(ABC):
    """A model on its training rows. `e` is what the targets leave over, `noise` the precision of the targets."""

    steps = CG_STEPS  # of the linear part

    def __init__(
        self, rows: int, linear: Sequence[WeightGroup], factors: Sequence[WeightGroup], intercept: bool
    ) -> None:
        self.rows, self.linear, self.factors = rows, list(linear), list(factors)
        self.intercept, self.shifts = 0.0, intercept

    @property
    def parts(self) -> list[WeightGroup]:
        return [*self.linear, *self.factors]

    def score(self) -> Array:
        found = np.full(self.rows, self.intercept)
        for part in self.linear:
            found += part.at(0)[0]
        return found + sum(self.product(k) for k in range(self.rank))

    @property
    def rank(self) -> int:
        return len(self.factors[0].mean) if self.factors else 0

    def sweep(self, e: Array, noise: float) -> tuple[Array, float]:
        """Every weight once. Gives what is left over, and the variance of all predictions together."""
        spread = 0.0
        if self.shifts:
            self.intercept += float(e.mean())
            e = e - e.mean()
        for part in self.linear:
            e = e + part.at(0)[0]
            part.solve(0, np.full(self.rows, noise), noise * e, self.steps)
            mean, variance = part.at(0)
            e, spread = e - mean, spread + float(variance.sum())
        for k in range(self.rank):
            e = e + self.product(k)
            self.factor(k, e, noise)
            e, spread = e - self.product(k), spread + self.doubt(k)
        return e, spread

    def scale(self, unit: float) -> None:
        """The model of targets `unit` times as large."""
        self.intercept *= unit
        for part in self.linear:
            part.scale(unit)
        for part in self.factors:
            part.scale(unit**0.5)  # two of them are multiplied

    @abstractmethod
    def product(self, k: int) -> Array:
        """What factor k adds to the score of every row."""

    @abstractmethod
    def doubt(self, k: int) -> float:
        """The variance of that, over all rows."""

    @abstractmethod
    def factor(self, k: int, e: Array, noise: float) -> None:
        """Fit factor k to what is left over without it."""


class LinearAls(AlsModel):
    """No factors: one ridge regression, solved to the end."""

    steps = 1000

    def product(self, k: int) -> Array:
        raise NotImplementedError

    factor = doubt = product  # type: ignore[assignment]


class BilinearAls(AlsModel):
    """(Wx₁)ᵀ(Vx₂): with x₁ = user and x₂ = item matrix factorisation, with x₁ = x₂ the lecture's factorisation machine."""

    def product(self, k: int) -> Array:
        left, right = self.factors
        return left.at(k)[0] * right.at(k)[0]

    def doubt(self, k: int) -> float:
        (p, pv), (q, qv) = (part.at(k) for part in self.factors)
        return float((p * p + pv) @ qv + (q * q) @ pv)

    def factor(self, k: int, e: Array, noise: float) -> None:
        left, right = self.factors
        for part, other in ((left, right), (right, left)):
            mean, variance = other.at(k)
            part.solve(k, noise * (mean * mean + variance), noise * mean * e)


def run_als(
    model: AlsModel,
    y: Array,
    loss: Loss,
    sweeps: int,
    tol: float,
    each: Callable[[int], None] = lambda n: None,
) -> int:
    """Sweep until the scores move less than `tol` times the targets' spread; gives the number of sweeps.

    Where the noise is learned the targets are given unit variance meanwhile, so that their scale changes nothing.
    """
    ridges = any(part.prior.learns for part in model.parts)
    learns, blind = loss.learns and ridges, WARM_UP if ridges else 0
    spread = float(np.std(y)) or 1.0
    unit, far = (spread, tol) if learns else (1.0, tol * spread)
    y, noise, before = y / unit, loss.noise, model.score()
    for done in range(1, sweeps + 1):
        e, doubt = model.sweep(loss.residual(y, before), noise)
        if done > blind:
            for part in model.parts:
                part.learn()
        if learns:
            noise = (len(y) + 1.0) / (float(e @ e) + doubt + 0.01)
        each(1)
        now = model.score()
        moved, before = float(np.sqrt(np.mean((now - before) ** 2))), now
        if done > blind + 1 and moved < far:
            sweeps = done
            break
    model.scale(unit)
    return sweeps
