"""Normalisers against the entmax package and by hand."""

import math

import entmax
import pytest
import torch

import regard
from regard import Causal, Entmax, Hard, Raw, Sigmoid, Softmax, Sparsemax, attend, weights

ALL = [
    Softmax(),
    Softmax(0.3),
    Raw(),
    Sigmoid(),
    Sparsemax(),
    Entmax(1.5),
    Entmax(1.25),
    Entmax(1.8),
    Entmax(3.0),
    Entmax(1.0),
    Hard(),
]


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_entmax_agrees_with_the_entmax_package(scale):
    x = torch.randn(7, 30, dtype=torch.float64) * scale
    for ours, theirs in (
        (Sparsemax(), entmax.sparsemax),
        (Entmax(1.5), entmax.entmax15),
        (Entmax(2.0), entmax.sparsemax),
        (Entmax(1.2), lambda x: entmax.entmax_bisect(x, 1.2, n_iter=80)),
        (Entmax(1.7), lambda x: entmax.entmax_bisect(x, 1.7, n_iter=80)),
        (Entmax(2.5), lambda x: entmax.entmax_bisect(x, 2.5, n_iter=80)),
    ):
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        ya, yb = ours(a), theirs(b)
        assert torch.allclose(ya, yb, atol=1e-7), ours
        g = torch.randn_like(x)
        assert torch.allclose(*(torch.autograd.grad(y, z, g)[0] for y, z in ((ya, a), (yb, b))), atol=1e-5), ours


def test_entmax_lies_between_softmax_and_sparsemax():
    x = torch.randn(5, 20, dtype=torch.float64)
    zeros = [int((Entmax(a)(x) == 0).sum()) for a in (1.0, 1.3, 1.5, 2.0)]
    assert zeros == sorted(zeros)
    assert zeros[0] == 0
    assert zeros[-1] > zeros[1]
    for alpha in (1.3, 1.5, 2.0, 2.6):
        assert torch.allclose(Entmax(alpha)(x).sum(-1), torch.ones(5).double())
    assert torch.allclose(Entmax(1.0 + 1e-4)(x), torch.softmax(x, -1), atol=1e-3)


def test_hard_takes_the_first_maximum():
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    assert Hard()(x).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_raw_is_the_scores_themselves():
    q, k, v = (torch.randn(1, 1, 5, 4) for _ in range(3))
    assert torch.allclose(attend(q, k, v, normalize=Raw()), (q @ k.transpose(-1, -2) / 2) @ v, atol=1e-6)


@pytest.mark.parametrize("normalize", ALL, ids=repr)
def test_a_masked_weight_is_zero_and_a_dead_row_is_zeros_under_every_normaliser(normalize):
    x = torch.randn(3, 6, 6, dtype=torch.float64, requires_grad=True)
    allowed = torch.rand(3, 6, 6) < 0.5
    allowed[0, 0] = False
    w = normalize(x, allowed)
    assert (w[~allowed] == 0).all()
    assert w.isfinite().all()
    if w.requires_grad:
        grad = torch.autograd.grad(w.square().sum(), x)[0]
        assert grad.isfinite().all()
        assert (grad[~allowed] == 0).all()
    kept = x[1, 2][allowed[1, 2]]
    if kept.numel():
        assert torch.allclose(w[1, 2][allowed[1, 2]], normalize(kept[None])[0])


def test_temperature_goes_to_the_mean_and_to_the_maximum():
    x = torch.randn(4, 9, dtype=torch.float64)
    assert torch.allclose(Softmax(1e9)(x), torch.full((4, 9), 1 / 9).double())
    assert torch.allclose(Softmax(1e-4)(x), Hard()(x), atol=1e-9)
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 70, 4)
    for kernel in ("reference", "sdpa", "cpp", "tiled"):
        try:
            out = attend(q, k, k, normalize=Softmax(0.2), mask=Causal(), kernel=kernel)
        except regard.KernelError:
            continue
        assert torch.allclose(out, weights(q, k, energy=regard.Dot(5 * 0.5), mask=Causal()) @ k, atol=1e-5)


@pytest.mark.parametrize("normalize", [n for n in ALL if not isinstance(n, Hard)], ids=repr)
@pytest.mark.parametrize("kernel", ["reference", "tiled"])
def test_gradcheck_of_every_normaliser(normalize, kernel):
    q, k, v = (torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(lambda *x: attend(*x, normalize=normalize, mask=Causal(), kernel=kernel), (q, k, v))


@pytest.mark.parametrize("normalize", [Entmax(1.5), Sparsemax(), Entmax(1.3), Sigmoid()], ids=repr)
def test_second_derivatives_of_sparse_normalisers(normalize):
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(normalize, (x,), atol=1e-4)


def test_scores_of_minus_infinity_count_as_masked():
    x = torch.tensor([[0.0, -math.inf, 1.0]])
    for normalize in (Softmax(), Sparsemax(), Entmax(1.5), Entmax(1.3), Sigmoid()):
        assert normalize(x)[0, 1] == 0


@pytest.mark.parametrize(
    "make", [lambda: Softmax(0), lambda: Softmax(-1), lambda: Softmax(math.nan), lambda: Entmax(0.5), lambda: Entmax("x")]
)
def test_bad_normalisers_are_refused(make):
    with pytest.raises(regard.OptionError, match="must be a number"):
        make()
