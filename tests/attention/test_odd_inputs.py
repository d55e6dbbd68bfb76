"""Inputs that a kernel may get wrong in silence: each is compared with the reference, or with the rule.

Overlapping views, biases far from the energies, NaN where a mask or few keys hide it, rules overridden by a
mixin, hooks.
"""

import math

import pytest
import torch

from regard import ALiBi, Bilinear, Causal, Padding, ScaledDot, Softmax, Window, attend, explain, weights
from regard.attention.bias import DenseBias
from regard.errors import KernelError

KERNELS = ("cpp", "sdpa", "tiled")


def run(kernel, *tensors, **options):
    """`attend` by a kernel; skips where it cannot run."""
    try:
        return attend(*tensors, kernel=kernel, **options)
    except KernelError as error:
        pytest.skip(str(error))


def draw(*shape, seed=0, **options):
    return torch.randn(3, *shape, generator=torch.Generator().manual_seed(seed), **options).unbind()


# Memory


@pytest.mark.parametrize("kernel", [None, *KERNELS])
@pytest.mark.parametrize(("dim", "steps"), [(16, 20), (8, 10), (16, 81)])
def test_rows_may_overlap_in_memory(kernel, dim, steps):
    q, k, v = (x.unfold(-1, dim, 1) for x in draw(1, 1, steps))
    out = run(kernel, q, k, v)
    expected = attend(*(x.double().contiguous() for x in (q, k, v)), kernel="reference")
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


# Biases


@pytest.mark.parametrize("kernel", ["reference", *KERNELS])
@pytest.mark.parametrize("mask", [Causal(), Window(4, 0), torch.ones(6, 6, dtype=torch.bool).tril()])
def test_a_row_whose_visible_keys_have_a_large_negative_bias_keeps_its_digits(kernel, mask):
    q, k, v = draw(2, 2, 6, 8)
    bias = torch.zeros(6, 6)
    bias[:, :3] = -1e9  # rows 0 to 2 see no other key under the mask
    q.requires_grad_()
    out = run(kernel, q, k, v, mask=mask, bias=bias)
    out.sum().backward()
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = attend(*wide, mask=mask, bias=bias.double(), kernel="reference")
    expected.sum().backward()
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(q.grad.double(), wide[0].grad, atol=1e-5, rtol=1e-5)


def test_the_weights_of_such_a_row_are_those_without_the_bias():
    q, k, _ = draw(1, 1, 6, 8)
    bias = torch.zeros(6, 6)
    bias[:, :3] = -1e9
    torch.testing.assert_close(
        weights(q, k, mask=Causal(), bias=bias)[0, 0, :3], weights(q, k, mask=Causal())[0, 0, :3]
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_a_finite_bias_divided_by_a_small_temperature_does_not_mask(kernel, softcap):
    q, k, v = draw(1, 2, 40, 8)
    bias = torch.zeros(40, 40)
    bias[3] = torch.finfo(torch.float32).min
    options = {"bias": bias, "softcap": softcap, "normalize": Softmax(0.5)}
    out = run(kernel, q, k, v, **options)
    torch.testing.assert_close(out, attend(q, k, v, kernel="reference", **options))
    assert (out[0, 0, 3] != 0).any()


# NaN


@pytest.mark.parametrize("kernel", [None, "reference", *KERNELS])
def test_a_masked_nan_in_a_bias_reaches_no_gradient_through_the_soft_cap(kernel):
    q, k, v = (x.requires_grad_() for x in draw(1, 1, 4, 8))
    bias = torch.zeros(4, 4)
    bias[0, 3] = math.nan
    bias.requires_grad_()
    out = run(kernel, q, k, v, bias=bias, mask=Causal(), softcap=5.0)
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v, bias)))


@pytest.mark.parametrize("kernel", [None, "reference", "tiled"])
@pytest.mark.parametrize("mask", [Causal(), Padding([3])])
def test_a_masked_nan_in_a_gate_reaches_nothing(kernel, mask):
    q, k, v = (x.requires_grad_() for x in draw(1, 1, 4, 8))
    gate = torch.ones(4, 4).masked_fill(~mask.dense(4, 4), math.nan)
    out = run(kernel, q, k, v, mask=mask, gate=DenseBias(gate))
    torch.testing.assert_close(out, attend(q, k, v, mask=mask, kernel="reference"))
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize("kernel", [None, "reference", *KERNELS])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("length", [5, 70])
def test_a_nan_gradient_of_a_row_without_keys_reaches_nothing(kernel, second, length):
    q, k, v = (x.requires_grad_() for x in draw(2, 2, length, 16))
    mask = torch.rand(length, length, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[:, 0] = True
    mask[3] = False
    out = run(kernel, q, k, v, mask=mask)
    gradient = torch.ones_like(out)
    gradient[:, :, 3] = math.nan
    grads = torch.autograd.grad(out, (q, k, v), gradient, create_graph=second)
    assert all(x.isfinite().all() for x in grads)


@pytest.mark.parametrize("kernel", [None, *KERNELS])
@pytest.mark.parametrize("keys", [1, 5, 15, 16, 40])
@pytest.mark.parametrize("mask", [None, Causal()])
def test_nan_queries_and_keys_are_not_swallowed_when_there_are_few_keys(kernel, keys, mask):
    for side in range(2):
        tensors = [x.clone() for x in draw(1, 2, keys, 8)]
        tensors[side][0, 0, -1, 0] = math.nan
        out = run(kernel, *tensors, mask=mask)
        expected = attend(*tensors, mask=mask, kernel="reference")
        assert (expected.isnan() & ~out.isnan()).sum() == 0 and expected.isnan().any()


# Rules that a mixin or a hook changes


class Later:
    def allowed(self, grid):
        return grid.k >= grid.position()


class LaterCausal(Later, Causal):
    pass


class OfLaterCausal(LaterCausal):
    pass


class Twice:
    def __call__(self, query, key):
        return 2 * super().__call__(query, key)


class TwiceDot(Twice, ScaledDot):
    pass


class Halved:
    def rows(self, *args, **options):
        return super().rows(*args, **options) / 2


class HalvedSoftmax(Halved, Softmax):
    pass


class Shifted:
    def values(self, grid, query):
        return super().values(grid, query) * 3


class ShiftedALiBi(Shifted, ALiBi):
    pass


@pytest.mark.parametrize(
    "options",
    [
        {"mask": LaterCausal()},
        {"mask": OfLaterCausal()},
        {"energy": TwiceDot()},
        {"normalize": HalvedSoftmax()},
        {"bias": ShiftedALiBi(heads=8)},
    ],
    ids=lambda options: type(next(iter(options.values()))).__name__,
)
def test_a_rule_overridden_by_a_mixin_is_followed_by_every_kernel(options):
    q, k, v = draw(1, 8, 300, 16)
    expected = attend(q, k, v, kernel="reference", **options)
    torch.testing.assert_close(attend(q, k, v, **options), expected, atol=1e-5, rtol=1e-4)
    for kernel in KERNELS:
        try:
            out = attend(q, k, v, kernel=kernel, **options)
        except KernelError:
            continue
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


def test_a_mixin_that_overrides_no_rule_keeps_the_hints():
    class Named:
        name = "mine"

    class NamedCausal(Named, Causal):
        pass

    q, k, v = draw(1, 8, 300, 16)
    assert explain(q, k, v, mask=NamedCausal()).kernel == explain(q, k, v, mask=Causal()).kernel


def test_hooks_of_an_energy_run_on_every_path():
    energy = Bilinear(8)
    q, k, v = draw(1, 2, 300, 8)
    plain = attend(q, k, v, energy=energy)
    handle = energy.register_forward_hook(lambda module, inputs, output: 3 * output)
    hooked = attend(q, k, v, energy=energy)
    torch.testing.assert_close(hooked, attend(q, k, v, energy=energy, kernel="reference"))
    assert not torch.allclose(hooked, plain)
    handle.remove()
    torch.testing.assert_close(attend(q, k, v, energy=energy), plain)
