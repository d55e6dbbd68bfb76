"""Estimators pass scikit-learn's checks and recover planted factors.

Covers estimator.py, factorization.py, linear_models.py.
"""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from regard.interactions import (
    FactorizationMachine,
    FactorizationMachineClassifier,
    Linear,
    LinearClassifier,
    MatrixFactorization,
    MatrixFactorizationClassifier,
    Polynomial2,
    Polynomial2Classifier,
)

ESTIMATORS = [
    Linear(),
    Linear(solver="variational"),
    Linear(solver="sgd", max_iter=100),
    LinearClassifier(),
    Polynomial2(),
    Polynomial2Classifier(),
    MatrixFactorization(3),
    MatrixFactorization(3, solver="als"),
    MatrixFactorizationClassifier(3),
    FactorizationMachine(3),
    FactorizationMachine(3, form="rendle"),
    FactorizationMachine(3, form="rendle", solver="als"),
    FactorizationMachine(3, solver="sgd", max_iter=100),
    FactorizationMachineClassifier(3),
    FactorizationMachineClassifier(3, form="rendle"),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_estimator_checks_pass(estimator, check):
    assert failure_of(check, estimator) is None


def failure_of(check, estimator):
    """The AssertionError that a check of scikit-learn raises, or None; what it returns is not specified."""
    try:
        check(estimator)
    except AssertionError as error:
        return error
    return None


def ratings(seed=0, users=60, items=40, rows=2000):
    """One-hot (user, item) pairs, each once, rated from planted factors and biases."""
    rng = np.random.default_rng(seed)
    u, i = np.divmod(rng.permutation(users * items)[:rows], items)
    w, v, b = rng.normal(size=(2, users)), rng.normal(size=(2, items)), rng.normal(size=users)
    y = 3 + b[u] + (w[:, u] * v[:, i]).sum(0) + 0.1 * rng.normal(size=rows)
    row = np.arange(rows)
    x = sparse.csr_matrix(
        (np.ones(2 * rows), (np.append(row, row), np.append(u, users + i))), shape=(rows, users + items)
    )
    return x, y


@pytest.mark.parametrize(
    "model",
    [
        MatrixFactorization(2, split=60, max_iter=200),
        MatrixFactorization(2, split=60, solver="als", penalty=0.1, max_iter=200),
        MatrixFactorization(2, split=60, solver="sgd", penalty=0.1, max_iter=20, batch=16, rate=0.5),
        FactorizationMachine(2, max_iter=200, random_state=1),
        FactorizationMachine(2, form="rendle", max_iter=200),
        FactorizationMachine(2, form="rendle", solver="als", penalty=0.1, max_iter=200),
    ],
    ids=lambda m: f"{type(m).__name__}-{m.solver}-{getattr(m, 'form', '')}",
)
def test_planted_factors_are_recovered_where_a_linear_model_fails(model):
    x, y = ratings()
    assert Linear().fit(x[:1600], y[:1600]).score(x[1600:], y[1600:]) < 0.4
    assert clone(model).fit(x[:1600], y[:1600]).score(x[1600:], y[1600:]) > 0.9


def test_the_polynomial_model_cannot_predict_unseen_pairs():
    x, y = ratings()
    fitted = Polynomial2(penalty=0.1).fit(x[:1600], y[:1600])
    trained = {tuple(row.indices) for row in x[:1600]}
    is_new = np.array([tuple(row.indices) not in trained for row in x[1600:]])
    without_products = fitted.intercept_ + x @ (fitted.coef_ + fitted.W_.diagonal())
    np.testing.assert_allclose(fitted.predict(x[1600:])[is_new], without_products[1600:][is_new], atol=1e-9)
    assert fitted.score(x[:1600], y[:1600]) > 0.9 > 0.4 > fitted.score(x[1600:][is_new], y[1600:][is_new])


def test_factorization_classifiers_beat_logistic_regression():
    x, y = ratings()
    likes = (y > np.median(y)).astype(int)
    linear = LinearClassifier().fit(x[:1600], likes[:1600]).score(x[1600:], likes[1600:])
    for model in (
        MatrixFactorizationClassifier(2, split=60, max_iter=100),
        FactorizationMachineClassifier(2, form="rendle", max_iter=100),
    ):
        fitted = model.fit(x[:1600], likes[:1600])
        assert fitted.score(x[1600:], likes[1600:]) > linear + 0.05
        np.testing.assert_allclose(fitted.predict_proba(x).sum(1), 1.0)


def test_fitted_matrices_have_the_lectures_shapes():
    x, y = ratings()
    mf = MatrixFactorization(3, split=60).fit(x, y)
    assert mf.W_.shape == (3, 60) and mf.V_.shape == (3, 40)
    by_hand = mf.intercept_ + x @ mf.coef_ + ((x[:, :60] @ mf.W_.T) * (x[:, 60:] @ mf.V_.T)).sum(1)
    np.testing.assert_allclose(mf.predict(x), by_hand)
    fm = FactorizationMachine(3).fit(x, y)
    dense = x.toarray()
    by_hand = fm.intercept_ + dense @ fm.coef_ + np.einsum("ni,ij,nj->n", dense, fm.W_.T @ fm.V_, dense)
    np.testing.assert_allclose(fm.predict(x), by_hand)


def test_the_same_seed_gives_the_same_result():
    x, y = ratings()
    for solver in ("als", "variational", "sgd"):
        result = [
            FactorizationMachine(2, solver=solver, random_state=s).fit(x, y).predict(x) for s in (1, 1, 2)
        ]
        assert (result[0] == result[1]).all() and (result[0] != result[2]).any()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Linear(solver="newton"), "solver must be one of als, variational, sgd, got 'newton'"),
        (Linear(penalty=-1), "penalty must be a number of at least 0, got -1"),
        (FactorizationMachine(0), "factors must be an integer of at least 1, got 0"),
        (FactorizationMachine(form="steffen"), "form must be one of lecture, rendle, got 'steffen'"),
        (MatrixFactorization(split=101), "split must be the number of columns of x₁, 0 to 100, got 101"),
        (FactorizationMachine(groups=[0, 1]), "groups must have one entry for each of the 100 columns"),
    ],
)
def test_invalid_options_are_errors(model, message):
    from regard.errors import OptionError

    with pytest.raises(OptionError, match=message):
        model.fit(*ratings())


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    import importlib
    import sys

    from regard.errors import OptionError

    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "regard.interactions")
    with pytest.raises(OptionError, match=r'this needs scikit-learn; pip install "regard\[interactions\]"'):
        importlib.import_module("regard.interactions")
