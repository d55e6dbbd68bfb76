"""Normalisers against their definitions and the entmax package."""

import math

import entmax
import pytest
import torch

import regard
from regard import Causal, Softmax, Sparsemax, attend, weights
from regard.attention import Dot, Entmax, Hard, Raw, Sigmoid
from regard.errors import KernelError, OptionError, ShapeError

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
        assert torch.allclose(*(torch.autograd.grad(y, z, g)[0] for y, z in ((ya, a), (yb, b))), atol=1e-5), (
            ours
        )


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
def test_masked_weights_and_empty_rows_are_zero_under_every_normaliser(normalize):
    x = torch.randn(3, 6, 6, dtype=torch.float64, requires_grad=True)
    allowed = torch.rand(3, 6, 6) < 0.5
    allowed[0, 0], allowed[1, 2, 0] = False, True
    w = normalize(x, allowed)
    assert (w[~allowed] == 0).all()
    assert w.isfinite().all()
    if w.requires_grad:
        grad = torch.autograd.grad(w.square().sum(), x)[0]
        assert grad.isfinite().all()
        assert (grad[~allowed] == 0).all()
    row, visible = x[1, 2], allowed[1, 2]
    assert torch.allclose(w[1, 2][visible], normalize(row[visible][None])[0])


def test_temperature_has_the_mean_and_the_maximum_as_limits():
    x = torch.randn(4, 9, dtype=torch.float64)
    assert torch.allclose(Softmax(1e9)(x), torch.full((4, 9), 1 / 9).double())
    assert torch.allclose(Softmax(1e-4)(x), Hard()(x), atol=1e-9)
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 70, 4)
    for kernel in ("reference", "sdpa", "cpp", "tiled"):
        try:
            out = attend(q, k, k, normalize=Softmax(0.2), mask=Causal(), kernel=kernel)
        except KernelError:
            continue
        assert torch.allclose(out, weights(q, k, energy=Dot(5 * 0.5), mask=Causal()) @ k, atol=1e-5)


@pytest.mark.parametrize("normalize", [n for n in ALL if not isinstance(n, Hard)], ids=repr)
@pytest.mark.parametrize("kernel", ["reference", "tiled"])
def test_gradcheck_of_every_normaliser(normalize, kernel):
    q, k, v = (torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(
        lambda *x: attend(*x, normalize=normalize, mask=Causal(), kernel=kernel), (q, k, v)
    )


@pytest.mark.parametrize("normalize", [Entmax(1.5), Sparsemax(), Entmax(1.3), Sigmoid()], ids=repr)
def test_second_derivatives_of_sparse_normalisers(normalize):
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(normalize, (x,), atol=1e-4)


def test_scores_of_minus_infinity_count_as_masked():
    x = torch.tensor([[0.0, -math.inf, 1.0]])
    for normalize in (Softmax(), Sparsemax(), Entmax(1.5), Entmax(1.3), Sigmoid()):
        assert normalize(x)[0, 1] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Softmax(0),
        lambda: Softmax(-1),
        lambda: Softmax(math.nan),
        lambda: Entmax(0.5),
        lambda: Entmax("x"),
    ],
)
def test_bad_normalisers_are_refused(make):
    with pytest.raises(OptionError, match="must be a number"):
        make()


def with_sinks(scores, sinks, temperature=1.0):
    """The definition: a softmax over the scores and the sink, whose weight is then dropped."""
    column = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], -1) / temperature, -1)[..., :-1]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1e-3])
def test_sinks_take_weight_as_one_more_score_without_a_value(temperature):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 8, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7))
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    scores = (q @ k.mT / 8**0.5).masked_fill(~Causal().dense(5, 7), -torch.inf)
    expected = with_sinks(scores, sinks, temperature) @ v
    out = attend(q, k, v, mask=Causal(), normalize=Softmax(temperature, sinks=sinks))
    assert torch.allclose(out, expected, atol=1e-12)
    grad = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(out, (q, k, v, sinks), grad),
        torch.autograd.grad(expected, (q, k, v, sinks), grad),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-10)


def test_every_kernel_computes_sinks_correctly_or_refuses_them():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 150, 16) for _ in range(3))
    sinks, ran = torch.randn(4), []
    expected = with_sinks((q @ k.mT / 4).masked_fill(~Causal().dense(150, 150), -torch.inf), sinks) @ v
    for kernel in regard.attention.plan.KERNELS:
        try:
            out = attend(q, k, v, mask=Causal(), normalize=Softmax(sinks=sinks), kernel=kernel)
        except KernelError as error:
            assert "sinks" in str(error) or kernel in (
                "additive",
                "triton",
                "triton-additive",
                "triton-short",
                "triton-cache",
            )
            continue
        ran.append(kernel)
        assert torch.allclose(out, expected, atol=1e-5), kernel
    assert ran == ["tiled", "reference"]


def test_a_row_without_visible_keys_gives_zeros_with_sinks_too():
    q, sinks = torch.randn(1, 2, 3, 4, requires_grad=True), torch.zeros(2, requires_grad=True)
    out = attend(q, q, q, mask=~Causal(), normalize=Softmax(sinks=sinks))
    assert not out[:, :, -1].any()
    out.sum().backward()
    assert q.grad.isfinite().all() and sinks.grad.isfinite().all()


def test_watched_weights_of_one_head_use_the_sink_of_that_head():
    q, sinks = torch.randn(1, 3, 5, 4), torch.tensor([-9.0, 0.0, 9.0])
    with regard.watch() as seen:
        attend(q, q, q, normalize=Softmax(sinks=sinks))
    for head in range(3):
        expected = with_sinks(q @ q.mT / 2, sinks)[:, head]
        assert torch.allclose(seen["attend.0"].weights(head=head), expected, atol=1e-6)


def test_invalid_sinks_are_refused():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(OptionError, match="one per head"):
        Softmax(sinks=3.0)
    with pytest.raises(ShapeError, match="sinks were given for 5 heads and the call has 2"):
        attend(q, q, q, normalize=Softmax(sinks=torch.zeros(5)))
