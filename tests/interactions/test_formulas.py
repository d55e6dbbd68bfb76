"""Formulas: identities from the linear model to attention, and gradients against finite differences."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import regard
from regard.interactions.formulas import LinearFormula, LowRank, Rendle

SHAPES = given(st.integers(1, 6), st.integers(2, 7), st.integers(0, 10**6))


def random_inputs(factors, width, seed, rows=4):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, width)) * (rng.random((rows, width)) < 0.7)
    p = {"b": rng.normal(), "w": rng.normal(size=width)}
    return x, p | {name: rng.normal(size=(width, factors)) for name in "WV"}


def linear(x, p):
    return p["b"] + x @ p["w"]


@SHAPES
def test_the_low_rank_form_is_a_polynomial_with_the_matrix_wtv(factors, width, seed):
    x, p = random_inputs(factors, width, seed)
    matrix = p["W"] @ p["V"].T  # the lecture's WᵀV: its W is (K, M)
    by_pairs = [sum(matrix[i, j] * r[i] * r[j] for i in range(width) for j in range(width)) for r in x]
    for inputs in (x, sparse.csr_matrix(x)):
        np.testing.assert_allclose(LowRank().score(inputs, p) - linear(x, p), by_pairs, rtol=1e-9, atol=1e-9)


@SHAPES
def test_rendles_identity_equals_the_double_sum(factors, width, seed):
    x, p = random_inputs(factors, width, seed)
    v = p["V"]
    by_pairs = [sum(v[i] @ v[j] * r[i] * r[j] for i in range(width) for j in range(i + 1, width)) for r in x]
    for inputs in (x, sparse.csr_matrix(x)):
        np.testing.assert_allclose(Rendle().score(inputs, p) - linear(x, p), by_pairs, rtol=1e-9, atol=1e-9)


@SHAPES
def test_matrix_factorisation_is_a_factorisation_machine_with_block_matrices(factors, width, seed):
    rng = np.random.default_rng(seed)
    users = int(rng.integers(1, width))
    w, v = rng.normal(size=(factors, users)), rng.normal(size=(factors, width - users))
    a, b = rng.integers(users), rng.integers(width - users)
    x = np.zeros(width)
    x[a] = x[users + b] = 1.0
    expected = (w @ x[:users]) @ (v @ x[users:])
    assert expected == pytest.approx(w[:, a] @ v[:, b])
    zero = np.zeros((factors, width))
    left, right = zero.copy(), zero.copy()
    left[:, :users], right[:, users:] = w, v  # W' = [W 0], V' = [0 V]
    p = {"b": 0.0, "w": np.zeros(width)}
    assert LowRank().score(x[None], p | {"W": left.T, "V": right.T})[0] == pytest.approx(expected)
    symmetric = 0.5 * (left.T @ right + right.T @ left)
    assert x @ symmetric @ x == pytest.approx(expected)
    assert np.linalg.matrix_rank(symmetric) == 2 * np.linalg.matrix_rank(w.T @ v) <= 2 * factors
    # 2K factors give the symmetric matrix itself.
    twice = {"W": 0.5 * np.vstack([left, right]).T, "V": np.vstack([right, left]).T}
    np.testing.assert_allclose(twice["W"] @ twice["V"].T, symmetric, atol=1e-12)
    assert LowRank().score(x[None], p | twice)[0] == pytest.approx(expected)


@SHAPES
def test_bilinear_attention_energies_are_a_factorisation_machine_on_each_pair_of_steps(factors, width, seed):
    torch.manual_seed(seed)
    energy = regard.Bilinear(width, rank=factors).double()
    sequence = torch.randn(1, 5, width, dtype=torch.float64)  # one head, 5 steps
    scores = regard.weights(sequence, sequence, energy=energy, stage="energy").detach().numpy()[0]
    w, v = energy.W.detach().numpy(), energy.V.detach().numpy()
    x = sequence[0].numpy()
    p = {"b": 0.0, "w": np.zeros(width), "W": w.T, "V": v.T}
    np.testing.assert_allclose(np.diag(scores), LowRank().score(x, p), atol=1e-9)  # each step with itself
    zero = np.zeros((width, factors))
    pairs = {"b": 0.0, "w": np.zeros(2 * width), "W": np.vstack([w.T, zero]), "V": np.vstack([zero, v.T])}
    for t in range(5):
        pair = np.hstack([np.tile(x[t], (5, 1)), x])  # (x_t, x_s) for every s
        np.testing.assert_allclose(scores[t], LowRank().score(pair, pairs), atol=1e-9)


@pytest.mark.parametrize("form", [LinearFormula(), LowRank(), Rendle()], ids=lambda form: type(form).__name__)
def test_gradients_match_finite_differences(form):
    x, p = random_inputs(3, 5, 0)
    slope = np.array([0.3, -1.0, 2.0, 0.7])
    gradient = form.gradient(sparse.csr_matrix(x), p, slope)
    for name in ("b", "w", *form.factors):
        flat = np.atleast_1d(np.asarray(p[name], float)).copy()
        for index in np.ndindex(flat.shape):
            values = []
            for step in (1e-6, -1e-6):
                changed = flat.copy()
                changed[index] += step
                values.append(slope @ form.score(x, p | {name: changed if name != "b" else changed[0]}))
            assert np.atleast_1d(gradient[name])[index] == pytest.approx(
                (values[0] - values[1]) / 2e-6, rel=1e-6, abs=1e-8
            )


def test_no_square_matrix_is_created_for_a_million_predictors():
    """An M×M matrix would take 8 TB."""
    rng = np.random.default_rng(0)
    positions = np.repeat(np.arange(50), 10), rng.integers(1_000_000, size=500)
    x = sparse.csr_matrix((rng.normal(size=500), positions), shape=(50, 1_000_000))
    p = {"b": 0.0, "w": np.zeros(x.shape[1])} | {name: rng.normal(size=(x.shape[1], 2)) for name in "WV"}
    used = np.unique(x.indices)
    parameters = {"b": 0.0, "w": p["w"][used], "W": p["W"][used], "V": p["V"][used]}
    for form in (LowRank(), Rendle()):
        np.testing.assert_allclose(form.score(x, p), form.score(x[:, used].toarray(), parameters), atol=1e-12)
