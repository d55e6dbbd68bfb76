"""Stochastic gradient descent (Adagrad) with sparse updates, for any formula."""

from __future__ import annotations

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
) -> int:
    """Minimise loss + ½ penalty ‖weights‖² in place, the objective of ALS; return the number of epochs.

    The penalty of a column is divided over the rows in which it occurs, so that an epoch applies it once.
    """
    trained = [*(["w"] if linear else []), *form.factors]
    share = 1.0 / np.maximum(1, np.bincount(x.indices, minlength=x.shape[1]))
    sums = {name: np.full_like(p[name], 1e-8) for name in trained} | {"b": 1e-8}
    step = partial(
        _step,
        form,
        p=p,
        sums=sums,
        loss=loss,
        penalty=penalty * share,
        rate=rate,
        trained=trained,
        intercept=intercept,
    )
    std, scores = float(np.std(y)) or 1.0, form.score(x, p)
    for epoch in range(1, epochs + 1):
        order = rng.permutation(len(y))
        shuffled, targets = x[order], y[order]
        for start in range(0, len(y), batch):
            step(shuffled[start : start + batch], targets[start : start + batch])
        new = form.score(x, p)
        if float(np.sqrt(np.mean((new - scores) ** 2))) < tol * std:
            return epoch
        scores = new
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
    trained: list[str],
    intercept: bool,
) -> None:
    """One Adagrad step on a batch; updates only the weights of columns that occur in it."""
    columns, place, counts = np.unique(x.indices, return_inverse=True, return_counts=True)
    # the batch restricted to its nonzero columns
    compact = type(x)((x.data, place, x.indptr), shape=(x.shape[0], len(columns)))
    weights = {"b": p["b"], **{name: p[name][columns] for name in ("w", *form.factors)}}
    gradients = form.gradient(compact, weights, loss.slope(y, form.score(compact, weights)))
    ridge = penalty[columns] * counts
    allowed = getattr(form, "columns", {})
    for name in trained:
        g = gradients[name] + (ridge if weights[name].ndim == 1 else ridge[:, None]) * weights[name]
        if allowed.get(name) is not None:
            g *= allowed[name][columns][:, None]
        sums[name][columns] += g * g
        p[name][columns] -= rate * g / np.sqrt(sums[name][columns])
    if intercept:
        sums["b"] += gradients["b"] ** 2
        p["b"] -= rate * gradients["b"] / np.sqrt(sums["b"])
