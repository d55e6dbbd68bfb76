"""Ridge regression by conjugate gradients: the one linear problem that every alternating step is."""

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
    """x with `apply`(x) = right, for a positive definite map with that diagonal; each step costs one `apply`.

    The squared error never grows from step to step, so a few of them from the last sweep's solution are enough.
    """
    diagonal = np.where(
        diagonal > 0, diagonal, 1.0
    )  # a column that no row has, without a penalty, stays as it is
    x = start
    rest = right - apply(x)
    direction = scaled = rest / diagonal
    size = first = float(rest @ scaled)
    enough = tol * tol * max(first, float(right @ (right / diagonal)))
    for _ in range(steps):
        if not size > enough:
            break
        moved = apply(direction)
        length = size / float(direction @ moved)
        x = x + length * direction
        rest = rest - length * moved
        scaled = rest / diagonal
        size, before = float(rest @ scaled), size
        direction = scaled + size / before * direction
    return x


def ridge(
    rows: RepeatedRows, weight: Array, pull: Array, penalty: Array, start: Array, steps: int
) -> tuple[Array, Array]:
    """Minimise ½ Σ_r weight_r (Tw)_r² − Σ_r pull_r (Tw)_r + ½ Σ_j penalty_j w_j², T the table; and the curvature per weight."""
    table, (back, back_squared) = rows.table, rows.transposed
    diagonal = penalty + back_squared @ weight
    apply = lambda w: penalty * w + back @ (weight * (table @ w))  # noqa: E731
    return conjugate_gradient(apply, back @ pull, start, diagonal, steps), diagonal
