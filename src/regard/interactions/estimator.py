"""What the estimators share: scikit-learn's conventions around a form, a loss and a solver."""

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
from regard.interactions.loss import Logistic, Loss, Squared, probability
from regard.interactions.regularization import FixedPenalty, LearnedPenalty, Prior, WeightGroup
from regard.interactions.repeated_rows import Array, RepeatedRows, hstack
from regard.interactions.sgd import run_sgd

SOLVERS = ("als", "variational", "sgd")
MakeWeights = Callable[[RepeatedRows, NDArray[np.bool_], str], WeightGroup]
INIT_STD = 0.1  # standard deviation of the factors to begin with


class Interaction(BaseEstimator):
    """The parent of all: y = f(x) with weights found by `solver`.

    als: alternating least squares with ridge `penalty`. sgd: the same sum by stochastic gradients (Adagrad, `rate`, `batch`).
    variational: alternating steps that learn the ridge of each block of columns (`groups`, one number per column) from the data.
    """

    _loss: Loss = Squared()
    _linear = True  # whether wᵀx is a part of the form
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
    def _form(self, width: int) -> Formula:
        """The formula for that many columns."""

    def _sweeper(self, x: Any, linear: list[WeightGroup], make: MakeWeights, p: Weights) -> AlsModel:
        """The model on its rows; `make` gives the weights of a factor on some of the columns."""
        return LinearAls(x.shape[0], linear, [], self._shifts)

    @property
    def _shifts(self) -> bool:
        """Whether the intercept is fitted by itself: otherwise it is the weight of a column of ones."""
        return self.intercept and not self._linear

    def _learn(self, x: Any, y: Array) -> None:
        self._check()
        width, form = x.shape[1], self._form(x.shape[1])
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        p: Weights = {"b": 0.0, "w": np.zeros(width)}
        for name in form.factors:
            p[name] = (
                rng.normal(0.0, INIT_STD, (width, self.get_params()["factors"]))
                * self._places(width)[name][:, None]
            )
        self.n_iter_ = self._descend(form, x, y, p, rng) if self.solver == "sgd" else self._alternate(x, y, p)
        self._keep(p)

    def _descend(self, form: Formula, x: Any, y: Array, p: Weights, rng: np.random.Generator) -> int:
        return run_sgd(
            form, x, y, p, self._loss, penalty=self.penalty, rate=self.rate, batch=self.batch, epochs=self.max_iter, tol=self.tol,
            rng=rng, intercept=self.intercept, linear=self._linear,
        )  # fmt: skip

    def _alternate(self, x: Any, y: Array, p: Weights) -> int:
        prior: Prior = LearnedPenalty() if self.solver == "variational" else FixedPenalty(self.penalty)
        blocks = self._blocks(x.shape[1])

        def make(rows: RepeatedRows, columns: NDArray[np.bool_], name: str) -> WeightGroup:
            mean = np.ascontiguousarray(p[name][columns].T)
            return WeightGroup(rows, len(mean), blocks[columns], prior, mean)

        linear = [self._biases(x, blocks, prior)] if self._linear else []
        model = self._sweeper(x, linear, make, p)
        done = run_als(model, y, self._loss, self.max_iter, self.tol)
        p["b"] = model.intercept
        for part in linear:
            w = part.mean[0]
            p["b"], p["w"] = (w[0], w[1:]) if self.intercept else (0.0, w)
        for part, (name, columns) in zip(model.factors, self._places(x.shape[1]).items(), strict=True):
            p[name][columns] = part.mean.T
        return done

    def _places(self, width: int) -> dict[str, NDArray[np.bool_]]:
        """The columns that each factor has weights for."""
        form = self._form(width)
        allowed = getattr(form, "columns", {})
        return {
            name: np.ones(width, bool) if allowed.get(name) is None else allowed[name]
            for name in form.factors
        }

    def _biases(self, x: Any, blocks: NDArray[np.int64], prior: Prior) -> WeightGroup:
        """The linear part, with a column of ones whose weight is the intercept and is not held back."""
        if not self.intercept:
            return WeightGroup(RepeatedRows(x), 1, blocks, prior, np.zeros((1, x.shape[1])))
        table = hstack(sparse.csr_matrix(np.ones((x.shape[0], 1))), x)
        part = WeightGroup(RepeatedRows(table), 1, np.append(0, blocks + 1), prior, np.zeros((1, table.shape[1])))
        if isinstance(prior, FixedPenalty):
            part.penalty[:, 0] = 0.0
        return part

    def _blocks(self, width: int) -> NDArray[np.int64]:
        groups = self.groups
        if groups is None:
            return np.zeros(width, int)
        found = np.asarray(groups)
        if found.shape != (width,):
            raise OptionError(
                f"groups must name a block for each of the {width} columns, got {found.shape}; give one a column"
            )
        return np.unique(found, return_inverse=True)[1].astype(int)

    def _check(self) -> None:
        given = self.get_params()
        if given["solver"] not in SOLVERS:
            raise OptionError(f"solver must be one of {', '.join(SOLVERS)}, got {given['solver']!r}")
        for name in ("factors", "max_iter", "batch"):
            value = given.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("penalty", "rate", "tol"):
            value = given.get(name, 1.0)
            if (
                not isinstance(value, (int, float, np.number))
                or not 0 <= value < np.inf
                or (name == "rate" and value == 0)
            ):
                raise OptionError(f"{name} must be a number of at least 0, got {value!r}")

    def _keep(self, p: Weights) -> None:
        """Weights as attributes, the lecture's way around: W_ and V_ are (K, M)."""
        self._weights = p
        self.intercept_, self.coef_ = float(p["b"]), p["w"]
        for name in self._form(len(p["w"])).factors:
            setattr(self, f"{name}_", p[name].T)

    def _scores(self, x: Any) -> Array:
        check_is_fitted(self)
        x = self._checked(x)
        return self._form(x.shape[1]).score(x, self._weights)

    def _checked(self, x: Any) -> Any:
        return sparse.csr_matrix(validate_data(self, x, accept_sparse="csr", dtype=np.float64, reset=False))


class Regression(RegressorMixin, Interaction):
    """Numbers, by squared error."""

    def fit(self, X: Any, y: Any) -> Any:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        self._learn(sparse.csr_matrix(X), np.asarray(y, np.float64))
        return self

    def predict(self, X: Any) -> Array:
        return self._scores(X)


class Classification(ClassifierMixin, Interaction):
    """Two classes, by logistic loss; sklearn's OneVsRestClassifier makes more of them."""

    _loss: Loss = Logistic()

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
            raise OptionError(f"all rows are of one class, {self.classes_[0]!r}; give rows of two classes")
        self._learn(sparse.csr_matrix(X), codes.astype(np.float64))
        return self

    def decision_function(self, X: Any) -> Array:
        """The score whose logistic function is the probability of the second class."""
        return self._scores(X)

    def predict_proba(self, X: Any) -> Array:
        p = probability(self._scores(X))
        return np.stack([1 - p, p], 1)

    def predict(self, X: Any) -> NDArray[Any]:
        scores = self._scores(X)  # first: it says when nothing was fitted
        return self.classes_[(scores > 0).astype(int)]
