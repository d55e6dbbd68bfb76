"""Base classes of the estimators: scikit-learn conventions around a formula, a loss and a solver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from regard.errors import OptionError
from regard.interactions.als import AlsModel, LinearAls, run_als
from regard.interactions.formulas import Formula, Weights
from regard.interactions.loss import InteractionLoss, Logistic, Squared, probability
from regard.interactions.regularization import FixedPenalty, LearnedPenalty, Prior, WeightGroup
from regard.interactions.repeated_rows import Array, RepeatedRows, hstack
from regard.interactions.sgd import SgdOptions, run_sgd

SOLVERS = ("als", "variational", "sgd")
MakeWeights = Callable[[RepeatedRows, NDArray[np.bool_], str], WeightGroup]
INIT_STD = 0.1  # standard deviation of initial factors


class Interaction(BaseEstimator):
    """Base class of all estimators: y = f(x), with weights fitted by `solver`.

    als: alternating least squares with ridge `penalty`. sgd: the same objective by stochastic gradient
    descent (Adagrad, learning rate `rate`, batch size `batch`). variational: ALS that learns the penalty of
    each group of columns (`groups`, one number per column) from the data.
    """

    _loss: InteractionLoss = Squared()
    _linear = True  # whether the formula includes wᵀx
    penalty: float
    intercept: bool
    solver: str
    groups: Any
    max_iter: int
    tol: float
    rate: float
    batch: int
    random_state: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @abstractmethod
    def _formula(self, width: int) -> Formula:
        """The formula for that many columns."""

    def _als_model(self, x: Any, linear: list[WeightGroup], make: MakeWeights, p: Weights) -> AlsModel:
        """The ALS model of the training rows; `make` creates the weights of a factor on some columns."""
        return LinearAls(x.shape[0], linear, [], self._separate_intercept)

    @property
    def _separate_intercept(self) -> bool:
        """Whether the intercept is fitted separately; otherwise it is the weight of a column of ones."""
        return self.intercept and not self._linear

    def _fit(self, x: Any, y: Array) -> None:
        self._check()
        width, formula = x.shape[1], self._formula(x.shape[1])
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        p: Weights = {"b": 0.0, "w": np.zeros(width)}
        for name in formula.factors:
            p[name] = (
                rng.normal(0.0, INIT_STD, (width, self.get_params()["factors"]))
                * self._factor_columns(width)[name][:, None]
            )
        self.n_iter_ = (
            self._fit_sgd(formula, x, y, p, rng) if self.solver == "sgd" else self._fit_als(x, y, p)
        )
        self._keep(p)

    def _fit_sgd(self, formula: Formula, x: Any, y: Array, p: Weights, rng: np.random.Generator) -> int:
        options = SgdOptions(
            self.penalty, self.rate, self.batch, self.max_iter, self.tol, self.intercept, self._linear
        )
        return run_sgd(formula, x, y, p, self._loss, options, rng)

    def _fit_als(self, x: Any, y: Array, p: Weights) -> int:
        prior: Prior = LearnedPenalty() if self.solver == "variational" else FixedPenalty(self.penalty)
        blocks = self._blocks(x.shape[1])

        def make(rows: RepeatedRows, columns: NDArray[np.bool_], name: str) -> WeightGroup:
            mean = np.ascontiguousarray(p[name][columns].T)
            return WeightGroup(rows, len(mean), blocks[columns], prior, mean)

        linear = [self._linear_weights(x, blocks, prior)] if self._linear else []
        model = self._als_model(x, linear, make, p)
        iterations = run_als(model, y, self._loss, self.max_iter, self.tol)
        p["b"] = model.intercept
        for group in linear:
            w = group.mean[0]
            p["b"], p["w"] = (w[0], w[1:]) if self.intercept else (0.0, w)
        for group, (name, columns) in zip(
            model.factors, self._factor_columns(x.shape[1]).items(), strict=True
        ):
            p[name][columns] = group.mean.T
        return iterations

    def _factor_columns(self, width: int) -> dict[str, NDArray[np.bool_]]:
        """Mask of the columns that each factor matrix has weights for."""
        formula = self._formula(width)
        allowed = getattr(formula, "columns", {})
        return {
            name: np.ones(width, bool) if allowed.get(name) is None else allowed[name]
            for name in formula.factors
        }

    def _linear_weights(self, x: Any, blocks: NDArray[np.int64], prior: Prior) -> WeightGroup:
        """The linear weights; the intercept is the unpenalised weight of an extra column of ones."""
        if not self.intercept:
            return WeightGroup(RepeatedRows(x), 1, blocks, prior, np.zeros((1, x.shape[1])))
        table = hstack(sparse.csr_matrix(np.ones((x.shape[0], 1))), x)
        group = WeightGroup(
            RepeatedRows(table), 1, np.append(0, blocks + 1), prior, np.zeros((1, table.shape[1]))
        )
        if isinstance(prior, FixedPenalty):
            group.penalty[:, 0] = 0.0
        return group

    def _blocks(self, width: int) -> NDArray[np.int64]:
        groups = self.groups
        if groups is None:
            return np.zeros(width, int)
        array = np.asarray(groups)
        if array.shape != (width,):
            raise OptionError(
                f"groups must have one entry for each of the {width} columns, got shape {array.shape}"
            )
        return np.unique(array, return_inverse=True)[1].astype(int)

    def _check(self) -> None:
        params = self.get_params()
        if params["solver"] not in SOLVERS:
            raise OptionError(f"solver must be one of {', '.join(SOLVERS)}, got {params['solver']!r}")
        for name in ("factors", "max_iter", "batch"):
            value = params.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise OptionError(f"{name} must be an integer of at least 1, got {value!r}")
        for name in ("penalty", "rate", "tol"):
            value = params.get(name, 1.0)
            if (
                not isinstance(value, (int, float, np.number))
                or not 0 <= value < np.inf
                or (name == "rate" and value == 0)
            ):
                raise OptionError(f"{name} must be a number of at least 0, got {value!r}")

    def _keep(self, p: Weights) -> None:
        """Weights as attributes, as Schmidt-Thieme writes them: W_ and V_ are (K, M)."""
        self._weights = p
        self.intercept_, self.coef_ = float(p["b"]), p["w"]
        for name in self._formula(len(p["w"])).factors:
            setattr(self, f"{name}_", p[name].T)

    def _scores(self, x: Any) -> Array:
        check_is_fitted(self)
        x = self._checked(x)
        return self._formula(x.shape[1]).score(x, self._weights)

    def _checked(self, x: Any) -> Any:
        return sparse.csr_matrix(validate_data(self, x, accept_sparse="csr", dtype=np.float64, reset=False))


class InteractionRegressor(RegressorMixin, Interaction):
    """Regression with squared error."""

    def fit(self, X: Any, y: Any) -> Any:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        self._fit(sparse.csr_matrix(X), np.asarray(y, np.float64))
        return self

    def predict(self, X: Any) -> Array:
        return self._scores(X)


class InteractionClassifier(ClassifierMixin, Interaction):
    """Binary classification with logistic loss; use OneVsRestClassifier for more classes."""

    _loss: InteractionLoss = Logistic()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> Any:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        if type_of_target(y) != "binary":
            raise OptionError(
                f"Only binary classification is supported. The type of the target is {type_of_target(y)}."
            )
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            # scikit-learn's checks look for "one class" in this message.
            raise OptionError(f"all rows belong to one class, {self.classes_[0]!r}; give rows of two classes")
        self._fit(sparse.csr_matrix(X), codes.astype(np.float64))
        return self

    def decision_function(self, X: Any) -> Array:
        """The logit of the second class."""
        return self._scores(X)

    def predict_proba(self, X: Any) -> Array:
        p = probability(self._scores(X))
        return np.stack([1 - p, p], 1)

    def predict(self, X: Any) -> NDArray[Any]:
        scores = self._scores(X)  # first: raises NotFittedError
        return self.classes_[(scores > 0).astype(int)]
