"""Solvers against closed forms, scikit-learn, each other and sampling.

Covers als.py, fm_solver.py, loss.py, regularization.py, repeated_rows.py, ridge.py, sgd.py.
"""

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import PolynomialFeatures

from regard.interactions import (
    FactorizationMachine,
    Linear,
    LinearClassifier,
    MatrixFactorization,
    Polynomial2,
)
from regard.interactions.als import BilinearAls, run_als
from regard.interactions.fm_solver import RendleAls
from regard.interactions.loss import Logistic, Squared
from regard.interactions.regularization import FixedPenalty, LearnedPenalty, WeightGroup
from regard.interactions.repeated_rows import RepeatedRows
from tests.interactions.test_estimators import ratings


@pytest.fixture
def dense():
    rng = np.random.default_rng(0)
    x = rng.normal(2, 1, (60, 5))
    return x, x @ [1, -2, 0, 3, 1] + x[:, 0] * x[:, 1] + rng.normal(size=60)


def test_linear_is_ridge_and_logistic_regression(dense):
    x, y = dense
    ours, theirs = Linear(penalty=2.0).fit(x, y), Ridge(2.0).fit(x, y)
    np.testing.assert_allclose(
        np.append(ours.coef_, ours.intercept_), np.append(theirs.coef_, theirs.intercept_), rtol=1e-5
    )
    label = y > np.median(y)
    ours, theirs = (
        LinearClassifier(penalty=2.0, max_iter=5000, tol=1e-9).fit(x, label),
        LogisticRegression(C=0.5, tol=1e-9).fit(x, label),
    )
    np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), atol=1e-3)


def test_polynomial_is_ridge_on_all_products(dense):
    x, y = dense
    features = PolynomialFeatures(2, include_bias=False)
    theirs = Ridge(1.0).fit(features.fit_transform(x), y)
    np.testing.assert_allclose(
        Polynomial2().fit(x, y).predict(x), theirs.predict(features.transform(x)), rtol=1e-4
    )


@pytest.mark.parametrize("loss", [Squared(), Logistic()], ids=["squared", "logistic"])
@pytest.mark.parametrize("form", ["lecture", "rendle"])
def test_no_als_iteration_raises_the_loss_and_it_converges(form, loss):
    x, y = ratings(rows=800)
    y = (y > 3).astype(float) if isinstance(loss, Logistic) else y - 3
    rng, prior = np.random.default_rng(0), FixedPenalty(0.5)
    start = [rng.normal(0, 0.1, (2, x.shape[1])) for _ in "WV"]
    blocks, rows = np.zeros(x.shape[1], int), RepeatedRows(x)
    if form == "lecture":
        model = BilinearAls(
            x.shape[0], [], [WeightGroup(rows, 2, blocks, prior, m) for m in start], intercept=False
        )
    else:
        model = RendleAls(x.shape[0], [], [WeightGroup(rows, 2, blocks, prior, start[0])], intercept=False)
    totals = [loss.total(y, model.score()) + sum(group.penalty_term() for group in model.groups)]
    for _ in range(400):
        run_als(model, y, loss, 1, 0.0)
        totals.append(loss.total(y, model.score()) + sum(group.penalty_term() for group in model.groups))
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(totals))
    assert totals[-2] - totals[-1] < 1e-4 * (totals[0] - totals[-1])


@pytest.mark.parametrize("form", ["lecture", "rendle"])
def test_sgd_reaches_the_objective_of_als(form):
    x, y = ratings()
    totals = []
    for solver, max_iter in (("als", 50), ("sgd", 30)):
        m = FactorizationMachine(
            2, form=form, solver=solver, penalty=1.0, max_iter=max_iter, tol=0.0, batch=16, rate=0.5
        ).fit(x, y)
        weights = [m.coef_, m.V_] + ([m.W_] if form == "lecture" else [])
        totals.append(0.5 * ((m.predict(x) - y) ** 2).sum() + 0.5 * sum((w**2).sum() for w in weights))
    assert totals[1] == pytest.approx(totals[0], rel=0.1)


def test_prediction_variance_matches_sampled_weights():
    rng = np.random.default_rng(0)
    x = sparse.csr_matrix(rng.normal(size=(3, 5)) * (rng.random((3, 5)) < 0.8))
    rows, blocks = RepeatedRows(x), np.zeros(5, int)
    groups = [WeightGroup(rows, 1, blocks, LearnedPenalty(), rng.normal(size=(1, 5))) for _ in "WV"]
    for group in groups:
        group.set(0, group.mean[0], 1 / rng.uniform(0.05, 0.5, 5))
    samples = [group.mean[0] + np.sqrt(group.variance[0]) * rng.normal(size=(200_000, 5)) for group in groups]
    products = (samples[0] @ x.T.toarray()) * (samples[1] @ x.T.toarray())
    assert BilinearAls(3, [], groups, False).variance(0) == pytest.approx(products.var(0).sum(), rel=0.03)
    pairs = 0.5 * ((samples[0] @ x.T.toarray()) ** 2 - samples[0] ** 2 @ x.multiply(x).T.toarray())
    model = RendleAls(3, [], groups[:1], False)
    assert model.variance(0) == pytest.approx(pairs.var(0).sum(), rel=0.03)
    np.testing.assert_allclose(model.product(0), pairs.mean(0), atol=0.03)


def test_repeated_rows_give_the_result_of_the_full_matrix():
    rng = np.random.default_rng(0)
    table, index = sparse.random(6, 9, 0.5, "csr", random_state=0), rng.integers(6, size=40)
    weight, target, start = rng.uniform(1, 2, 40), rng.normal(size=40), rng.normal(size=(1, 9))
    results = []
    for rows in (RepeatedRows(table, index), RepeatedRows(table[index])):
        group = WeightGroup(rows, 1, np.zeros(9, int), LearnedPenalty(), start.copy())
        group.solve(0, weight, target, 50)
        results.append((*group.at(0), group.mean[0], group.variance[0]))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)


def test_learned_penalties_separate_useful_from_useless_columns():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 60))
    y = x[:, :20] @ rng.normal(size=20) + 2 * rng.normal(size=300)
    groups = np.repeat([0, 1], [20, 40])
    test_x = rng.normal(size=(1000, 60))
    expected = test_x[:, :20] @ np.linalg.lstsq(x[:, :20], y, rcond=None)[0]
    errors = []
    for known_groups in (groups, None):
        model = Linear(solver="variational", groups=known_groups).fit(x, y)
        errors.append(np.mean((model.predict(test_x) - expected) ** 2))
    assert errors[0] < 0.6 * errors[1]


def test_biases_and_intercept_can_be_left_out():
    x, y = ratings()
    without = MatrixFactorization(2, split=60, biases=False, intercept=False, max_iter=5).fit(x, y)
    assert without.intercept_ == 0 and not without.coef_.any()
    with_intercept = MatrixFactorization(2, split=60, biases=False, max_iter=5).fit(x, y)
    assert with_intercept.intercept_ == pytest.approx(y.mean(), abs=1.0) and not with_intercept.coef_.any()


def test_a_column_of_zeros_keeps_its_initial_weight_without_a_penalty(dense):
    x, y = dense
    x = np.hstack([x, np.zeros((60, 1))])
    result = Linear(penalty=0.0).fit(x, y)
    assert result.coef_[-1] == 0 and np.isfinite(result.predict(x)).all()
    for form in ("lecture", "rendle"):
        assert np.isfinite(
            FactorizationMachine(2, form=form, solver="als", penalty=0.0).fit(x, y).predict(x)
        ).all()
