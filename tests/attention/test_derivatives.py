"""Second derivatives, and gradients of parameters in a bias, on every kernel."""

import pytest
import torch
from torch import nn

from regard import (
    Additive,
    ALiBi,
    Causal,
    Padding,
    Softmax,
    Window,
    attend,
)
from regard.attention import (
    Bias,
    Entmax,
    RelativeVectors,
)
from regard.errors import KernelError
from tests.attention.every_kernel import CHECKED, close, inputs, runs

TWICE = {
    "plain": {},
    "causal": {"mask": Causal()},
    "window": {"mask": Window(10, 4)},
    "padding": {"mask": Padding([140, 20])},
    "dense bias": {"bias": torch.randn(140, 140)},
    "ALiBi": {"bias": ALiBi(2), "mask": Causal()},
    "soft cap": {"softcap": 2.0},
    "cold": {"normalize": Softmax(0.5)},
    "additive": {"energy": Additive(16)},
    "entmax": {"normalize": Entmax(1.5)},
    "empty rows": {"mask": Causal(offset=-3)},
}


@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_penalty_equals_the_reference_on_every_kernel(name, dtype):
    options = dict(TWICE[name])
    if isinstance(options.get("energy"), nn.Module):
        options["energy"].to(dtype)
    if isinstance(options.get("bias"), torch.Tensor):
        options["bias"] = options["bias"].to(dtype)
    q, k, v = inputs(2, 2, 140, 16, dtype=dtype, grad=True)

    def penalty(out):
        (g,) = torch.autograd.grad(out.sum(), q, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (q, k, v), allow_unused=True)

    true = penalty(attend(q, k, v, kernel="reference", **options))
    largest = max(x.abs().max().item() for x in true if x is not None)
    for kernel, out in runs(q, k, v, **options):
        for a, b in zip(penalty(out), true, strict=True):
            assert close(a / largest, b / largest, 1e-4), kernel


def test_second_derivatives_with_a_learned_bias_agree_on_every_kernel():
    q, k, v = inputs(1, 2, 130, 8, grad=True)
    bias = torch.randn(2, 130, 130, requires_grad=True)
    second = []
    for _, out in runs(q, k, v, bias=bias):
        (g,) = torch.autograd.grad(out.square().sum(), bias, create_graph=True)
        second.append(torch.autograd.grad(g.square().sum(), (q, bias)))
    assert len(second) > 2
    for by_query, by_bias in second:
        assert close(by_query, second[-1][0], 1e-4)
        assert close(by_bias, second[-1][1], 1e-4)


class Sloped(Bias):
    def __init__(self, slope):
        self.slope = slope

    def values(self, grid, query):
        return -self.slope * (grid.k - grid.position()).abs()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_in_the_closure_of_a_bias_get_gradients(dtype):
    q, k, v = inputs(2, 4, 200, 16, dtype=dtype)
    slope = nn.Parameter(torch.tensor(0.01, dtype=dtype))
    for bias in (lambda t, s: -slope * (t - s).abs(), Sloped(slope)):
        for requires_grad in (False, True):
            tensors = [x.requires_grad_(requires_grad) for x in (q, k, v)]
            results = [
                (n, torch.autograd.grad(out.square().sum(), slope)[0])
                for n, out in runs(*tensors, bias=bias, mask=Window(60, 60))
            ]
            for name, grad in results:
                assert close(grad / results[-1][1], torch.ones(()), 1e-4), name


@pytest.mark.parametrize("options", [{}, {"mask": Window(9, 9)}, {"bias": RelativeVectors(8)}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_derivatives_when_one_input_is_a_function_of_another(options, dtype):
    leaf = torch.randn(1, 2, 130, 8, dtype=dtype, requires_grad=True)
    options = {n: x.to(dtype) if isinstance(x, nn.Module) else x for n, x in options.items()}
    results = []
    for name in ["reference", None, *CHECKED]:
        k = leaf.sin()
        try:
            out = attend(leaf, k, k.cos(), kernel=name, **options)
        except KernelError:
            continue
        (g,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        results.append((name, torch.autograd.grad(g.square().sum(), leaf)[0]))
    reference = results[0][1]
    for name, second in results:
        assert close(second / reference.abs().max(), reference / reference.abs().max(), 1e-4), name
