"""NaN and infinity in keys that no query sees, in queries that see no key, and in biases, on every kernel."""

import math

import pytest
import torch
from torch import nn

from regard import (
    Additive,
    Bilinear,
    Causal,
    Padding,
    Window,
    attend,
)
from regard.attention import (
    Bias,
    Cosine,
    Diagonal,
    Distance,
    Entmax,
    Prefix,
    RelativeVectors,
)
from tests.attention.every_kernel import close, grads, inputs, runs


def minus_infinity(bias, keys):
    bias[..., keys] = -math.inf
    return bias


HIDDEN = {
    "additive": lambda: ({"energy": Additive(16), "mask": Padding([100, 100])}, 100),
    "cosine": lambda: ({"energy": Cosine(), "mask": Padding([100, 100])}, 100),
    "bilinear": lambda: ({"energy": Bilinear(16, rank=4), "mask": Padding([100, 100])}, 100),
    "soft cap and learned bias": lambda: (
        {"softcap": 3.0, "bias": torch.randn(2, 130, 130, requires_grad=True), "mask": Padding([100, 100])},
        100,
    ),
    "relative vectors": lambda: (
        {"bias": RelativeVectors(16), "mask": Padding([100, 100]), "softcap": 3.0},
        100,
    ),
    "bias of -inf": lambda: ({"bias": minus_infinity(torch.randn(130, 130), slice(100, 130))}, 100),
    "causal and bias": lambda: (
        {"mask": Causal(), "bias": minus_infinity(torch.zeros(130, 130), slice(100, 130))},
        100,
    ),
    "dense": lambda: ({"mask": torch.arange(130).expand(130, 130) < 100}, 100),
    "distance": lambda: ({"energy": Distance(), "mask": Prefix(100)}, 100),
    "entmax": lambda: ({"normalize": Entmax(), "mask": Prefix(100)}, 100),
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e8])
def test_nan_in_a_key_that_no_query_sees_reaches_no_gradient(name, value):
    options, visible = HIDDEN[name]()
    finite = inputs(2, 2, 130, 16)
    with_value = [x.clone() for x in finite]
    for x in with_value[1:]:
        x[:, :, visible:] = value
    learned = [p for x in options.values() if isinstance(x, nn.Module) for p in x.parameters()]
    learned += [x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    results = []
    for tensors in (finite, with_value):
        leaves = [x.clone().requires_grad_() for x in tensors]
        results.append([(n, out, grads(out, [*leaves, *learned])) for n, out in runs(*leaves, **options)])
    for (kernel, a, da), (_, b, db) in zip(*results, strict=True):
        assert close(a, b), kernel
        for x, y in zip(da, db, strict=True):
            assert close(x, y, 1e-4), kernel


def test_nan_in_keys_after_the_last_query_reaches_nothing_under_torchs_causal_mask():
    q, k, v = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    k[:, :, 5:] = v[:, :, 5:] = math.nan
    for name, out in runs(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), mask=Causal(offset=0)):
        assert out.isfinite().all(), name
        assert all(g.isfinite().all() for g in grads(out, (q, k, v))), name


def test_nan_in_a_query_without_visible_keys_or_in_its_gradient_reaches_nothing():
    for dtype in (torch.float32, torch.float64):
        q, k, v = inputs(2, 2, 130, 16, dtype=dtype)
        q[:, :, :3] = math.nan
        leaves = [x.requires_grad_() for x in (q, k, v)]
        grad = torch.randn(2, 2, 130, 16, dtype=dtype)
        grad[:, :, :3] = math.nan
        for name, out in runs(*leaves, mask=Causal(offset=-3)):
            assert (out[:, :, :3] == 0).all(), name
            assert all(g.isfinite().all() for g in torch.autograd.grad(out, leaves, grad)), name


class AllHidden(Bias):
    def values(self, grid, query):
        return torch.full((1, 1), -math.inf, dtype=query.dtype).expand(grid.q.shape[0], grid.k.shape[1])


def test_nan_and_minus_infinity_in_a_bias_mean_the_same_on_every_kernel():
    q, k, v = inputs(1, 2, 140, 16)
    bias = torch.randn(140, 140)
    bias[3, 7], bias[5], bias[6, 9] = math.nan, -math.inf, math.nan
    for mask in (None, Window(100, 100)):
        for name, out in runs(q, k, v, bias=bias, mask=mask):
            assert out[:, :, 3].isnan().all(), name
            assert (out[:, :, 5] == 0).all(), name
            assert out[:, :, 20:].isfinite().all(), name
    for name, out in runs(q, k, v, bias=AllHidden()):
        assert (out == 0).all(), name
    hidden = torch.zeros(140, 140).masked_fill(torch.eye(140).bool(), math.nan)  # NaN where the mask hides it
    for name, out in runs(q, k, v, bias=hidden, mask=~Diagonal()):
        assert close(out, attend(q, k, v, mask=~Diagonal(), kernel="reference")), name
