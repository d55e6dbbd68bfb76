"""ALS for Rendle's factorisation machine, whose score is not linear in the weights of a factor."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.interactions.als import AlsModel
from regard.interactions.formulas import square_entries
from regard.interactions.regularization import CG_STEPS, WeightGroup
from regard.interactions.repeated_rows import Array
from regard.interactions.ridge import conjugate_gradient


class RendleAls(AlsModel):
    """Σ_{i<j} v_i v_j x_i x_j for each factor: one Gauss-Newton step with exact line search.

    With q = Xv and X² squared entrywise, the score of a factor is f = ½(q² − X²v²) and its derivative along d
    is q ∘ Xd − X²(v ∘ d), so everything costs O(nnz). Along v + td the error is a polynomial of degree 4 in
    t. Its minimum is computed exactly, so no step makes the fit worse.
    """

    def __init__(
        self, rows: int, linear: list[WeightGroup], factors: list[WeightGroup], intercept: bool
    ) -> None:
        super().__init__(rows, linear, factors, intercept)
        (group,) = factors
        self.x, self.x2 = group.rows.table, group.rows.squared
        self.x3 = self.x2.multiply(self.x).tocsr()
        # CSR transposes: products are twice as fast as with x.T
        self.xt, self.x2t, self.x3t = (matrix.T.tocsr() for matrix in (self.x, self.x2, self.x3))
        self.fourth = np.asarray(square_entries(self.x2).sum(0)).ravel()

    def product(self, k: int) -> Array:
        (group,) = self.factors
        return 0.5 * (group.value[k] ** 2 - self.x2 @ group.mean[k] ** 2)

    def variance(self, k: int) -> float:
        """Σ_n Σ_i x_i² s_i (q − x_i v_i)² + Σ_{i<j} x_i² x_j² s_i s_j, with variances s."""
        (group,) = self.factors
        v, s, q, t = group.mean[k], group.variance[k], group.value[k], group.value_variance[k]
        if not s.any():
            return 0.0
        one = (q * q) @ t - 2 * q @ (self.x3 @ (s * v)) + self.fourth @ (s * v * v)
        return float(one + 0.5 * (t @ t - self.fourth @ (s * s)))

    def fit_factor(self, k: int, e: Array, noise: float) -> None:
        (group,) = self.factors
        x, x2, xt, x2t, v, s = self.x, self.x2, self.xt, self.x2t, group.mean[k], group.variance[k]
        penalty, t = group.penalty[k][group.blocks], group.value_variance[k]
        q = x @ v
        residual = e - 0.5 * (q * q - x2 @ (v * v))

        def forward(d: Array) -> Array:
            return q * (x @ d) - x2 @ (v * d)

        def backward(g: Array) -> Array:
            return xt @ (q * g) - v * (x2t @ g)

        def penalty_gradient(d: Array) -> Array:  # half the (linear) gradient of the variance, plus the ridge
            if not s.any():
                return penalty * d
            xd = x @ d
            return penalty * d + noise * (
                xt @ (xd * t - self.x3 @ (s * d)) - s * (self.x3t @ xd) + s * d * self.fourth
            )

        descent = noise * backward(residual) - penalty_gradient(v)
        step = conjugate_gradient(
            lambda d: noise * backward(forward(d)) + penalty_gradient(d),
            descent,
            np.zeros_like(v),
            self.curvature(k, v, noise),
            CG_STEPS,
        )
        first, second = forward(step), 0.5 * ((x @ step) ** 2 - x2 @ (step * step))
        slope, curve = float(step @ penalty_gradient(v)), float(step @ penalty_gradient(step))
        v = v + _best_step_size(noise, residual, first, second, slope, curve) * step
        group.set(k, v, self.curvature(k, v, noise))

    def curvature(self, k: int, v: Array, noise: float) -> Array:
        """Second derivative of each weight alone: λ + noise · Σ_n x²((q − xv)² + variance of the others)."""
        (group,) = self.factors
        q, s, t = self.x @ v, group.variance[k], group.value_variance[k]
        others = self.x2t @ (q * q + t) - 2 * v * (self.x3t @ q) + (v * v - s) * self.fourth
        return group.penalty[k][group.blocks] + noise * np.maximum(others, 0.0)


def _best_step_size(
    noise: float, residual: Any, first: Any, second: Any, slope: float, curve: float
) -> float:
    """t that minimises ½ noise ‖residual − t·first − t²·second‖² + t·slope + ½ t²·curve."""
    a, b, c = (
        float(residual @ first),
        float(first @ first) - 2 * float(residual @ second),
        float(first @ second),
    )
    d = float(second @ second)
    polynomial = np.array([noise * d / 2, noise * c, noise * b / 2 + curve / 2, -noise * a + slope, 0.0])
    roots = np.roots(np.polyder(polynomial))
    real = roots[np.abs(roots.imag) < 1e-9 * (1 + np.abs(roots.real))].real
    return min([0.0, *real.tolist()], key=lambda t: float(np.polyval(polynomial, t)))
