"""Alternating steps for Rendle's form, whose factors are not linear in all their weights at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.interactions.als import AlsModel
from regard.interactions.formulas import square_entries
from regard.interactions.regularization import CG_STEPS, WeightGroup
from regard.interactions.repeated_rows import Array
from regard.interactions.ridge import conjugate_gradient


class RendleAls(AlsModel):
    """Σ_{i<j} v_i v_j x_i x_j for each factor: one Gauss-Newton step, as far as is best along it.

    With q = Xv and squares X² (entry by entry) the score of a factor is f = ½(q² − X²v²) and its derivative along d is
    q ∘ Xd − X²(v ∘ d), so everything costs O(nnz). Along v + td the error is a polynomial of degree 4 in t: its least value is
    found exactly, and no step makes the fit worse.
    """

    def __init__(
        self, rows: int, linear: list[WeightGroup], factors: list[WeightGroup], intercept: bool
    ) -> None:
        super().__init__(rows, linear, factors, intercept)
        (part,) = factors
        self.x, self.x2 = part.rows.table, part.rows.squared
        self.x3 = self.x2.multiply(self.x).tocsr()
        self.xt, self.x2t, self.x3t = (
            each.T.tocsr() for each in (self.x, self.x2, self.x3)
        )  # twice as fast as x.T
        self.fourth = np.asarray(square_entries(self.x2).sum(0)).ravel()

    def product(self, k: int) -> Array:
        (part,) = self.factors
        return 0.5 * (part.value[k] ** 2 - self.x2 @ part.mean[k] ** 2)

    def doubt(self, k: int) -> float:
        """Σ_n Σ_i x_i² s_i (q − x_i v_i)² + Σ_{i<j} x_i² x_j² s_i s_j, with variances s."""
        (part,) = self.factors
        v, s, q, t = part.mean[k], part.variance[k], part.value[k], part.spread[k]
        if not s.any():
            return 0.0
        one = (q * q) @ t - 2 * q @ (self.x3 @ (s * v)) + self.fourth @ (s * v * v)
        return float(one + 0.5 * (t @ t - self.fourth @ (s * s)))

    def factor(self, k: int, e: Array, noise: float) -> None:
        (part,) = self.factors
        x, x2, xt, x2t, v, s = self.x, self.x2, self.xt, self.x2t, part.mean[k], part.variance[k]
        penalty, t = part.penalty[k][part.blocks], part.spread[k]
        q = x @ v
        rest = e - 0.5 * (q * q - x2 @ (v * v))

        def along(d: Array) -> Array:
            return q * (x @ d) - x2 @ (v * d)

        def back(g: Array) -> Array:
            return xt @ (q * g) - v * (x2t @ g)

        def held(d: Array) -> Array:  # half the gradient of the variance, which is linear, plus the ridge
            if not s.any():
                return penalty * d
            xd = x @ d
            return penalty * d + noise * (
                xt @ (xd * t - self.x3 @ (s * d)) - s * (self.x3t @ xd) + s * d * self.fourth
            )

        down = noise * back(rest) - held(v)
        step = conjugate_gradient(
            lambda d: noise * back(along(d)) + held(d),
            down,
            np.zeros_like(v),
            self.curvature(k, v, noise),
            CG_STEPS,
        )
        first, second = along(step), 0.5 * ((x @ step) ** 2 - x2 @ (step * step))
        v = v + _best_step_size(noise, rest, first, second, float(step @ held(v)), float(step @ held(step))) * step
        part.put(k, v, self.curvature(k, v, noise))

    def curvature(self, k: int, v: Array, noise: float) -> Array:
        """Of each weight alone: λ + noise · Σ_n x²((q − xv)² + the others' variance)."""
        (part,) = self.factors
        q, s, t = self.x @ v, part.variance[k], part.spread[k]
        others = self.x2t @ (q * q + t) - 2 * v * (self.x3t @ q) + (v * v - s) * self.fourth
        return part.penalty[k][part.blocks] + noise * np.maximum(others, 0.0)


def _best_step_size(noise: float, rest: Any, first: Any, second: Any, slope: float, curve: float) -> float:
    """t that minimises ½ noise ‖rest − t·first − t²·second‖² + t·slope + ½ t²·curve."""
    a, b, c = float(rest @ first), float(first @ first) - 2 * float(rest @ second), float(first @ second)
    d = float(second @ second)
    line = np.array([noise * d / 2, noise * c, noise * b / 2 + curve / 2, -noise * a + slope, 0.0])
    roots = np.roots(np.polyder(line))
    real = roots[np.abs(roots.imag) < 1e-9 * (1 + np.abs(roots.real))].real
    return min([0.0, *real.tolist()], key=lambda t: float(np.polyval(line, t)))
