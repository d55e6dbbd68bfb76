"""Ridge regression by preconditioned conjugate gradients: the linear system of every ALS step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from regard.interactions.repeated_rows import Array, RepeatedRows


def conjugate_gradient(
    apply: Callable[[Array], Array],
    right: Array,
    start: Array,
    diagonal: Array,
    steps: int,
    tol: float = 1e-8,
) -> Array:
    """Solve `apply`(x) = right for a positive definite operator with this diagonal; one `apply` per step.

    The error never grows from step to step, so a few steps from the previous solution are enough.
    """
    diagonal = np.where(diagonal > 0, diagonal, 1.0)  # an unpenalised column without entries keeps its value
    x = start
    residual = right - apply(x)
    direction = scaled = residual / diagonal
    norm = float(residual @ scaled)
    threshold = tol * tol * max(norm, float(right @ (right / diagonal)))
    for _ in range(steps):
        if not norm > threshold:
            break
        image = apply(direction)
        step = norm / float(direction @ image)
        x = x + step * direction
        residual = residual - step * image
        scaled = residual / diagonal
        norm, previous = float(residual @ scaled), norm
        direction = scaled + norm / previous * direction
    return x


def ridge(
    rows: RepeatedRows, weight: Array, weighted_target: Array, penalty: Array, start: Array, steps: int
) -> tuple[Array, Array]:
    """Minimise ½ Σ_r weight_r (Tw)_r² − Σ_r weighted_target_r (Tw)_r + ½ Σ_j penalty_j w_j²; T is the table.

    Returns w and the curvature (second derivative) of each weight.
    """
    table, (back, back_squared) = rows.table, rows.transposed
    diagonal = penalty + back_squared @ weight
    apply = lambda w: penalty * w + back @ (weight * (table @ w))  # noqa: E731
    return conjugate_gradient(apply, back @ weighted_target, start, diagonal, steps), diagonal
