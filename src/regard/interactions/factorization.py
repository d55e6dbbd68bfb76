"""Matrix factorisation and factorisation machines: interactions through K latent factors.

scikit-learn reads the parameters of an estimator from the signature of `__init__`, so each class spells them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import OptionError
from regard.interactions.als import AlsModel, BilinearAls
from regard.interactions.estimator import (
    Interaction,
    InteractionClassifier,
    InteractionRegressor,
    MakeWeights,
)
from regard.interactions.fm_solver import RendleAls
from regard.interactions.formulas import Formula, LowRank, Rendle, Weights
from regard.interactions.regularization import WeightGroup
from regard.interactions.repeated_rows import RepeatedRows


class _MatrixFactorization(Interaction):
    def __init__(
        self,
        factors: int = 8,
        *,
        split: int | None = None,
        biases: bool = True,
        penalty: float = 1.0,
        intercept: bool = True,
        solver: str = "variational",
        groups: Any = None,
        max_iter: int = 50,
        tol: float = 1e-3,
        rate: float = 0.1,
        batch: int = 256,
        random_state: Any = 0,
    ) -> None:
        self.factors, self.split, self.biases = factors, split, biases
        self.penalty, self.intercept = penalty, intercept
        self.solver, self.groups, self.max_iter, self.tol = solver, groups, max_iter, tol
        self.rate, self.batch, self.random_state = rate, batch, random_state

    @property
    def _linear(self) -> bool:
        return self.biases

    def _left_columns(self, width: int) -> NDArray[np.bool_]:
        split = width // 2 if self.split is None else self.split
        if isinstance(split, bool) or not isinstance(split, (int, np.integer)) or not 0 <= split <= width:
            raise OptionError(f"split must be the number of columns of x₁, 0 to {width}, got {split!r}")
        return np.arange(width) < split

    def _formula(self, width: int) -> Formula:
        left = self._left_columns(width)
        return LowRank(left, ~left)

    def _als_model(self, x: Any, linear: list[WeightGroup], make: MakeWeights, p: Weights) -> AlsModel:
        left = self._left_columns(x.shape[1])
        parts = [
            make(RepeatedRows(x[:, columns]), columns, name) for name, columns in (("W", left), ("V", ~left))
        ]
        return BilinearAls(x.shape[0], linear, parts, self._separate_intercept)

    def _keep(self, p: Weights) -> None:
        super()._keep(p)
        left = self._left_columns(len(p["w"]))
        self.W_, self.V_ = p["W"][left].T, p["V"][~left].T


class MatrixFactorization(InteractionRegressor, _MatrixFactorization):
    """y = (W x₁)ᵀ(V x₂) + wᵀx + b; x₁: the first `split` columns (user), x₂: the others (item).

    Both sides may have further columns with features of the user or item. `W_` is (K, split), `V_` is
    (K, M − split). Without `split` the columns are split in half.
    """


class MatrixFactorizationClassifier(InteractionClassifier, _MatrixFactorization):
    """p = σ((W x₁)ᵀ(V x₂) + wᵀx + b), for likes and clicks instead of ratings."""


class _FactorizationMachine(Interaction):
    def __init__(
        self,
        factors: int = 8,
        *,
        form: str = "lecture",
        linear: bool = True,
        penalty: float = 1.0,
        intercept: bool = True,
        solver: str = "variational",
        groups: Any = None,
        max_iter: int = 50,
        tol: float = 1e-3,
        rate: float = 0.1,
        batch: int = 256,
        random_state: Any = 0,
    ) -> None:
        self.factors, self.form, self.linear = factors, form, linear
        self.penalty, self.intercept = penalty, intercept
        self.solver, self.groups, self.max_iter, self.tol = solver, groups, max_iter, tol
        self.rate, self.batch, self.random_state = rate, batch, random_state

    @property
    def _linear(self) -> bool:
        return self.linear

    def _formula(self, width: int) -> Formula:
        if self.form not in FORMS:
            raise OptionError(f"form must be one of {', '.join(FORMS)}, got {self.form!r}")
        return FORMS[self.form][0]()

    def _als_model(self, x: Any, linear: list[WeightGroup], make: MakeWeights, p: Weights) -> AlsModel:
        rows, all_columns = RepeatedRows(x), np.ones(x.shape[1], bool)
        parts = [make(rows, all_columns, name) for name in self._formula(x.shape[1]).factors]
        return FORMS[self.form][1](x.shape[0], linear, parts, self._separate_intercept)


FORMS: dict[str, tuple[type[LowRank] | type[Rendle], type[AlsModel]]] = {
    "lecture": (LowRank, BilinearAls),
    "rendle": (Rendle, RendleAls),
}


class FactorizationMachine(InteractionRegressor, _FactorizationMachine):
    """y = xᵀWᵀVx (form="lecture") or Σ_{i<j} ⟨v_i, v_j⟩ x_i x_j (form="rendle"), plus wᵀx + b.

    Costs O(nnz · K). `W_` and `V_` are (K, M); Rendle's form has `V_` alone.
    """


class FactorizationMachineClassifier(InteractionClassifier, _FactorizationMachine):
    """p = σ(y), with y of `FactorizationMachine`."""
