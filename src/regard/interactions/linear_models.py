"""The linear model, and the polynomial model with one weight per pair of predictors.

scikit-learn reads the parameters of an estimator from the signature of `__init__`, so each class spells them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from regard.errors import OptionError
from regard.interactions.estimator import Interaction, InteractionClassifier, InteractionRegressor
from regard.interactions.formulas import Formula, LinearFormula
from regard.interactions.repeated_rows import Array, hstack

MAX_PAIRS = 200_000_000  # products over all rows; they take 3 GB


class _Linear(Interaction):
    def __init__(
        self,
        *,
        penalty: float = 1.0,
        intercept: bool = True,
        solver: str = "als",
        groups: Any = None,
        max_iter: int = 200,
        tol: float = 1e-6,
        rate: float = 0.1,
        batch: int = 256,
        random_state: Any = 0,
    ) -> None:
        self.penalty, self.intercept, self.solver, self.groups = penalty, intercept, solver, groups
        self.max_iter, self.tol, self.random_state = max_iter, tol, random_state
        self.rate, self.batch = rate, batch

    def _formula(self, width: int) -> Formula:
        return LinearFormula()


class Linear(InteractionRegressor, _Linear):
    """y = wᵀx + b: ridge regression."""


class LinearClassifier(InteractionClassifier, _Linear):
    """p = σ(wᵀx + b): logistic regression."""


class _Polynomial2(Interaction):
    groups = None

    def __init__(
        self,
        *,
        linear: bool = True,
        penalty: float = 1.0,
        intercept: bool = True,
        solver: str = "als",
        max_iter: int = 200,
        tol: float = 1e-6,
        rate: float = 0.1,
        batch: int = 256,
        random_state: Any = 0,
    ) -> None:
        self.linear, self.penalty, self.intercept, self.solver = linear, penalty, intercept, solver
        self.max_iter, self.tol, self.random_state = max_iter, tol, random_state
        self.rate, self.batch = rate, batch

    def _formula(self, width: int) -> Formula:
        return LinearFormula()  # linear in the products of the predictors

    def _fit(self, x: Any, y: Array) -> None:
        width = x.shape[1]
        expanded, pairs = products(x)
        super()._fit(hstack(x, expanded) if self.linear else expanded, y)
        weights = self.coef_[width:] if self.linear else self.coef_
        self.coef_ = self.coef_[:width] if self.linear else np.zeros(width)
        self.W_ = sparse.csr_matrix((weights, (pairs // width, pairs % width)), shape=(width, width))

    def _scores(self, x: Any) -> Array:
        check_is_fitted(self)
        x = self._checked(x)
        return self.intercept_ + x @ self.coef_ + np.asarray(x.multiply(x @ self.W_).sum(1)).ravel()


class Polynomial2(InteractionRegressor, _Polynomial2):
    """y = xᵀWx (+ wᵀx + b): one weight per pair of predictors; pairs absent from the training data get none.

    `W_` is M×M, upper triangular and sparse, with entries only for pairs that occur.
    """


class Polynomial2Classifier(InteractionClassifier, _Polynomial2):
    """p = σ(xᵀWx + wᵀx + b)."""


def products(x: Any) -> tuple[Any, NDArray[np.int64]]:
    """All products x_i x_j, i ≤ j, as a sparse matrix, and the pair i·M + j of each of its columns."""
    x.sort_indices()
    lengths = np.diff(x.indptr).astype(np.int64)
    total = int((lengths * (lengths + 1) // 2).sum())
    if total > MAX_PAIRS:
        raise OptionError(
            f"all pairs of these predictors are {total:,} products, more than {MAX_PAIRS:,}; "
            "use FactorizationMachine, whose cost is linear in the entries"
        )
    after = np.repeat(x.indptr[1:], lengths) - np.arange(x.nnz)  # entries from this one to the end of its row
    first = np.repeat(np.arange(x.nnz), after)
    second = first + np.arange(total) - np.repeat(np.cumsum(after) - after, after)
    pairs, column = np.unique(
        x.indices[first].astype(np.int64) * x.shape[1] + x.indices[second], return_inverse=True
    )
    row = np.repeat(np.repeat(np.arange(x.shape[0]), lengths), after)
    return sparse.csr_matrix(
        (x.data[first] * x.data[second], (row, column)), shape=(x.shape[0], len(pairs))
    ), pairs
