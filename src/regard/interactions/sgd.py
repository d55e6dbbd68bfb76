"""Stochastic gradient descent (Adagrad) with sparse updates, for any formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.interactions.formulas import Formula, Weights
from regard.interactions.loss import InteractionLoss
from regard.interactions.repeated_rows import Array


@dataclass(frozen=True)
class SgdOptions:
    """Options of the solver: ridge penalty, learning rate, batch size, epochs, and whether intercept and
    linear weights are trained.
    """

    penalty: float
    rate: float
    batch: int
    epochs: int
    tol: float  # stop when an epoch changes the scores by less than this share of their deviation
    intercept: bool
    linear: bool


def run_sgd(
    form: Formula,
    x: Any,
    y: Array,
    p: Weights,
    loss: InteractionLoss,
    options: SgdOptions,
    rng: np.random.Generator,
) -> int:
    """Minimise loss + ½ penalty ‖weights‖² in place, the objective of ALS; return the number of epochs."""
    # The penalty of a column is divided over the rows in which it occurs, so that an epoch applies it once.
    rows_per_column = np.bincount(x.indices, minlength=x.shape[1])
    adagrad = _Adagrad(form, p, loss, options, options.penalty / np.maximum(1, rows_per_column))
    std, scores = float(np.std(y)) or 1.0, form.score(x, p)
    for epoch in range(1, options.epochs + 1):
        order = rng.permutation(len(y))
        shuffled, targets = x[order], y[order]
        for start in range(0, len(y), options.batch):
            batch = slice(start, start + options.batch)
            adagrad.step(shuffled[batch], targets[batch])
        new = form.score(x, p)
        if float(np.sqrt(np.mean((new - scores) ** 2))) < options.tol * std:
            return epoch
        scores = new
    return options.epochs


class _Adagrad:
    """The weights and their sums of squared gradients."""

    def __init__(
        self, form: Formula, p: Weights, loss: InteractionLoss, options: SgdOptions, penalty: Array
    ) -> None:
        self.form, self.p, self.loss, self.options = form, p, loss, options
        self.penalty = penalty  # (columns,)
        self.trained = [*(["w"] if options.linear else []), *form.factors]
        self.sums: Weights = {name: np.full_like(p[name], 1e-8) for name in self.trained} | {"b": 1e-8}

    def step(self, x: Any, y: Array) -> None:
        """One step on a batch; updates only the weights of columns that occur in it."""
        form, p, sums, rate = self.form, self.p, self.sums, self.options.rate
        columns, place, counts = np.unique(x.indices, return_inverse=True, return_counts=True)
        # the batch restricted to its nonzero columns
        compact = type(x)((x.data, place, x.indptr), shape=(x.shape[0], len(columns)))
        weights = {"b": p["b"], **{name: p[name][columns] for name in ("w", *form.factors)}}
        gradients = form.gradient(compact, weights, self.loss.slope(y, form.score(compact, weights)))
        ridge = self.penalty[columns] * counts
        allowed = getattr(form, "columns", {})
        for name in self.trained:
            g = gradients[name] + (ridge if weights[name].ndim == 1 else ridge[:, None]) * weights[name]
            if allowed.get(name) is not None:
                g *= allowed[name][columns][:, None]
            sums[name][columns] += g * g
            p[name][columns] -= rate * g / np.sqrt(sums[name][columns])
        if self.options.intercept:
            sums["b"] += gradients["b"] ** 2
            p["b"] -= rate * gradients["b"] / np.sqrt(sums["b"])
