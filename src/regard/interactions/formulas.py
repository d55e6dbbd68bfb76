"""Model formulas: scores and gradients in O(nnz · K), for sparse or dense X.

Weights are a dict: `b` a number, `w` (M,), `W` and `V` (M, K), one row per predictor. In Schmidt-Thieme's
lecture W and V are (K, M).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.interactions.repeated_rows import Array

Weights = dict[str, Any]


class Formula(Protocol):
    """A model formula: scores (rows,) and their gradient."""

    factors: tuple[str, ...]  # names of the (M, K) weights

    def score(self, x: Any, p: Weights) -> Array: ...

    def gradient(self, x: Any, p: Weights, slope: Array) -> Weights:
        """Σ_n slope_n · d score_n / d weight, for every weight."""
        ...


class LinearFormula:
    """y = b + wᵀx."""

    factors: tuple[str, ...] = ()

    def score(self, x: Any, p: Weights) -> Array:
        return x @ p["w"] + p["b"]

    def gradient(self, x: Any, p: Weights, slope: Array) -> Weights:
        return {"b": slope.sum(), "w": x.T @ slope}


class LowRank(LinearFormula):
    """y = b + wᵀx + xᵀWᵀVx = b + wᵀx + (Wx)ᵀ(Vx): Schmidt-Thieme's factorisation machine.

    Two products with x replace one with the M×M matrix WᵀV. If W and V are nonzero in different columns, [W
    0] and [0 V], this is matrix factorisation; `left` and `right` mask these columns.
    """

    factors: tuple[str, ...] = ("W", "V")

    def __init__(self, left: NDArray[np.bool_] | None = None, right: NDArray[np.bool_] | None = None) -> None:
        self.columns = {"W": left, "V": right}

    def score(self, x: Any, p: Weights) -> Array:
        return super().score(x, p) + ((x @ p["W"]) * (x @ p["V"])).sum(1)

    def gradient(self, x: Any, p: Weights, slope: Array) -> Weights:
        g = super().gradient(x, p, slope)
        g["W"] = x.T @ (slope[:, None] * (x @ p["V"]))
        g["V"] = x.T @ (slope[:, None] * (x @ p["W"]))
        return g


class Rendle(LinearFormula):
    """y = b + wᵀx + Σ_{i<j} ⟨v_i, v_j⟩ x_i x_j (Rendle 2010, eq. 1): W = V, without the diagonal.

    The double sum is ½ Σ_k [(Σ_j v_jk x_j)² − Σ_j v_jk² x_j²] (lemma 3.1), again O(nnz · K).
    """

    factors: tuple[str, ...] = ("V",)

    def score(self, x: Any, p: Weights) -> Array:
        return super().score(x, p) + 0.5 * (
            ((x @ p["V"]) ** 2).sum(1) - square_entries(x) @ (p["V"] ** 2).sum(1)
        )

    def gradient(self, x: Any, p: Weights, slope: Array) -> Weights:
        g = super().gradient(x, p, slope)
        g["V"] = x.T @ (slope[:, None] * (x @ p["V"])) - (square_entries(x).T @ slope)[:, None] * p["V"]
        return g


def square_entries(x: Any) -> Any:
    """Square every entry."""
    return x.multiply(x).tocsr() if hasattr(x, "multiply") else x * x
