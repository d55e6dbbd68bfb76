"""Half precision and extreme values on every kernel. Covers precision.py."""

import pytest
import torch

from regard import (
    Additive,
    ALiBi,
    Causal,
    Padding,
    Softmax,
    attend,
    weights,
)
from regard.attention import (
    Cosine,
    Distance,
    Entmax,
    Hard,
)
from regard.errors import KernelError
from tests.attention.every_kernel import close, grads, inputs, runs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_the_output_but_not_the_energies(dtype):
    eps = torch.finfo(dtype).eps
    for T in (9, 140):
        for options in (
            {},
            {"mask": Causal()},
            {"energy": Distance()},
            {"normalize": Entmax(1.5)},
            {"bias": ALiBi(2)},
        ):
            q, k, v = inputs(2, 2, T, 32, dtype=dtype, grad=True)
            with torch.no_grad():
                q *= 4
            exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
            true = attend(*exact, kernel="reference", **options)
            truth = grads(true, exact)
            for name, out in runs(q, k, v, **options):
                bound = (2 if name in ("auto", "reference") else 8) * eps * v.abs().max()
                assert (out.double() - true).abs().max() <= bound, (name, options)
                for a, b in zip(grads(out, (q, k, v)), truth, strict=True):
                    assert (a.double() - b).abs().max() <= 8 * eps * (1 + b.abs().max()), (name, options)


def test_a_finite_bias_never_masks_even_in_half_precision():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        q, k, v = inputs(1, 2, 6, 8, dtype=dtype)
        bias = torch.zeros(6, 6)
        bias[0], bias[1, 3:] = -1e9, -1e9
        for name, out in runs(q, k, v, bias=bias):
            assert out[:, :, 0].isfinite().all(), name
            assert out[:, :, 0].abs().sum() > 0, name
            assert close(out[:, :, 1], attend(q, k[..., :3, :], v[..., :3, :])[:, :, 1], 0.02), name


@pytest.mark.parametrize("alpha", [1.0, 1.01, 1.3, 1.5, 2.0, 3.0, 5.0, 12.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_entmax_rows_sum_to_one_and_their_gradient_is_exact(alpha, dtype):
    scores = (3 * torch.randn(40, 200, dtype=torch.float64)).to(dtype)
    p = Entmax(alpha)(scores)
    assert p.dtype == dtype
    assert (p.double().sum(-1) - 1).abs().max() < {
        torch.float64: 1e-12,
        torch.float32: 1e-5,
        torch.bfloat16: 0.05,
    }[dtype]
    if dtype == torch.float64 and alpha <= 3:
        small = torch.randn(3, 7, dtype=dtype, requires_grad=True)
        assert torch.autograd.gradcheck(Entmax(alpha), small)
        assert torch.autograd.gradgradcheck(Entmax(alpha), small)


def test_entmax_15_is_exact_in_float64():
    scores = torch.cat(
        [torch.zeros(5, 1), torch.full((5, 500), -1.9) + 0.2 * torch.rand(5, 500)], -1
    ).double()
    p = Entmax(1.5)(scores)
    tau = (scores / 2 - p.sqrt())[p > 1e-10]
    assert (p.sum(-1) - 1).abs().max() < 1e-14
    for row, weight in zip(scores / 2, p, strict=True):
        inside = weight > 1e-9
        assert (row - weight.sqrt())[inside].std() < 1e-13
    assert tau.numel()


def test_cosine_has_no_gradient_at_zero_and_is_exact_at_any_scale():
    q, k, v = (torch.randn(1, 1, 4, 8, dtype=torch.float64) for _ in range(3))
    q[0, 0, 1] = 0
    true = attend(q, k, v, energy=Cosine())
    for scale in (1.0, 1e-30, 1e30):
        a = (q.float() * scale).requires_grad_()
        for name, out in runs(a, k.float() * scale, v.float(), energy=Cosine()):
            assert close(out, true), name
            (g,) = torch.autograd.grad(out.square().sum(), a)
            assert (g[0, 0, 1] == 0).all(), name
            assert g.isfinite().all(), name


@pytest.mark.parametrize("temperature", [1e-40, 1e-12, 1e12])
def test_extreme_temperatures_give_the_limits(temperature):
    q, k, v = inputs(1, 2, 5, 8)
    limit = attend(q, k, v, normalize=Hard()) if temperature < 1 else v.mean(-2, keepdim=True).expand_as(v)
    for name, out in runs(q, k, v, normalize=Softmax(temperature)):
        assert close(out, limit), name


def test_weights_are_those_of_the_reference_in_the_dtype_of_the_call():
    q, k, _ = inputs(1, 2, 5, 8, dtype=torch.bfloat16)
    assert weights(q, k).dtype == torch.bfloat16


@pytest.mark.parametrize("far", [0.0, 100.0, 1e4])
def test_distances_of_vectors_far_from_the_origin_keep_their_digits(far):
    q, k, v = (torch.randn(2, 2, 130, 16) * 0.3 for _ in range(3))
    q, k = (q + far).requires_grad_(), (k + far).requires_grad_()
    exact = [x.detach().double().requires_grad_() for x in (q, k)]
    true = attend(*exact, v.double(), energy=Distance(), mask=Causal(), kernel="reference")
    truth = grads(true, exact)
    for name, out in runs(q, k, v, energy=Distance(), mask=Causal()):
        assert close(out, true, 1e-5), name
        for a, b in zip(grads(out, (q, k)), truth, strict=True):
            assert close(a, b, 1e-4), name


def test_distances_do_not_depend_on_a_hidden_key_or_another_sequence_that_is_far_away():
    q, k, v = (torch.randn(2, 2, 130, 16) for _ in range(3))
    for x in (q, k):
        x[1] += 1e7
    k[0, :, -1] = 1e7
    q, k, mask = q.requires_grad_(), k.requires_grad_(), Padding([129, 130])
    exact = [x.detach().double().requires_grad_() for x in (q, k)]
    true = attend(*exact, v.double(), energy=Distance(), mask=mask, kernel="reference")
    truth = grads(true[0], exact)
    for name, out in runs(q, k, v, energy=Distance(), mask=mask):
        assert close(out[0], true[0], 1e-5), name
        for a, b in zip(grads(out[0], (q, k)), truth, strict=True):
            assert close(a[0], b[0], 1e-4), name


@pytest.mark.parametrize("Tq", [1, 2, 4, 5, 40])
@pytest.mark.parametrize("size", [1.0, 60.0])
@pytest.mark.parametrize("learned_bias", [False, True])
def test_additive_kernels_agree_for_few_and_many_queries(Tq, size, learned_bias):
    from regard.attention.energy import ProjectedAdditive

    energy, exact_energy = Additive(16, 24, hidden=70), Additive(16, 24, hidden=70).double()
    exact_energy.load_state_dict(energy.state_dict())
    q, k, v = torch.randn(3, 1, Tq, 16) * size, torch.randn(3, 1, 29, 24) * size, torch.randn(3, 1, 29, 32)
    bias = torch.randn(Tq, 29)
    results = {}
    for name, e, dtype in (
        ("reference", exact_energy, torch.float64),
        ("cpp", energy, torch.float32),
        ("additive", energy, torch.float32),
    ):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, bias)]
        options = {
            "mask": Padding([29, 3, 1]),
            "bias": leaves[3] if learned_bias else None,
            "softcap": 20.0 if learned_bias else None,
        }
        projected = e.Wk(leaves[1])
        try:
            out = attend(leaves[0], projected, leaves[2], energy=ProjectedAdditive(e), kernel=name, **options)
        except KernelError:
            continue
        with_gradient = [*leaves[: 4 if learned_bias else 3], e.v, e.Wq.weight, e.Wk.weight]
        results[name] = (out, *torch.autograd.grad(out.square().sum(), with_gradient))
    assert len(results) > 1
    for name, result in results.items():
        for a, b in zip(result, results["reference"], strict=True):
            assert close(a / (1 + b.abs().max()), b / (1 + b.abs().max()), 2e-5), name
