"""Stochastic gradient descent over any form: small batches, a step size per weight (Adagrad), only weights a batch touches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from regard.interactions.formulas import Formula, Weights
from regard.interactions.loss import Loss
from regard.interactions.repeated_rows import Array


def run_sgd(
    form: Formula,
    x: Any,
    y: Array,
    p: Weights,
    loss: Loss,
    *,
    penalty: float,
    rate: float,
    batch: int,
    epochs: int,
    tol: float,
    rng: np.random.Generator,
    intercept: bool,
    linear: bool,
    each: Callable[[int], None] = lambda n: None,
) -> int:
    """Minimise loss + ½ penalty ‖weights‖² in place, the same sum that alternating least squares minimises; gives the epochs run.

    The ridge of a column is spread evenly over the rows that have it, so that a pass applies it once.
    """
    moving = [*(["w"] if linear else []), *form.factors]
    share = 1.0 / np.maximum(1, np.bincount(x.indices, minlength=x.shape[1]))
    sums = {name: np.full_like(p[name], 1e-8) for name in moving} | {"b": 1e-8}
    step = partial(
        _step,
        form,
        p=p,
        sums=sums,
        loss=loss,
        penalty=penalty * share,
        rate=rate,
        moving=moving,
        intercept=intercept,
    )
    unit, before = float(np.std(y)) or 1.0, form.score(x, p)
    for done in range(1, epochs + 1):
        order = rng.permutation(len(y))
        mixed, targets = x[order], y[order]
        for start in range(0, len(y), batch):
            step(mixed[start : start + batch], targets[start : start + batch])
        each(1)
        now = form.score(x, p)
        if float(np.sqrt(np.mean((now - before) ** 2))) < tol * unit:
            return done
        before = now
    return epochs


def _step(
    form: Formula,
    x: Any,
    y: Array,
    p: Weights,
    sums: Weights,
    loss: Loss,
    penalty: Array,
    rate: float,
    moving: list[str],
    intercept: bool,
) -> None:
    columns, place, counts = np.unique(x.indices, return_inverse=True, return_counts=True)
    few = type(x)(
        (x.data, place, x.indptr), shape=(x.shape[0], len(columns))
    )  # the batch on the columns it has
    mine = {"b": p["b"], **{name: p[name][columns] for name in ("w", *form.factors)}}
    slopes = form.gradient(few, mine, loss.slope(y, form.score(few, mine)))
    ridge = penalty[columns] * counts
    allowed = getattr(form, "columns", {})
    for name in moving:
        g = slopes[name] + (ridge if mine[name].ndim == 1 else ridge[:, None]) * mine[name]
        if allowed.get(name) is not None:
            g *= allowed[name][columns][:, None]
        sums[name][columns] += g * g
        p[name][columns] -= rate * g / np.sqrt(sums[name][columns])
    if intercept:
        sums["b"] += slopes["b"] ** 2
        p["b"] -= rate * slopes["b"] / np.sqrt(sums["b"])
