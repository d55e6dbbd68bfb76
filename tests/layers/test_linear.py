"""Linear layers: several as one matmul, and the bias gradient as a matmul on a GPU."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.attention.position import Rotary
from regard.layers import linear, multihead
from regard.layers.linear import Linear, _Affine, affine
from regard.layers.multihead import MultiHead


def random(*size):
    return torch.randn(*size, dtype=torch.float64, requires_grad=True)


def test_the_hand_written_gradients_equal_torchs():
    x, weight, bias = random(3, 5, 4), random(6, 4), random(6)
    out, expected = _Affine.apply(x, weight, bias), torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(out, expected)
    assert torch.autograd.gradcheck(_Affine.apply, (x, weight, bias))
    for frozen in range(3):  # a frozen input gets no gradient and does not affect the others
        inputs = [t.detach().requires_grad_(i != frozen) for i, t in enumerate((x, weight, bias))]
        trainable = [t for i, t in enumerate(inputs) if i != frozen]
        for a, b in zip(
            torch.autograd.grad(_Affine.apply(*inputs).square().sum(), trainable),
            torch.autograd.grad(torch.nn.functional.linear(*inputs).square().sum(), trainable),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


def test_second_derivatives_equal_those_of_torchs_linear():
    x, weight, bias = random(3, 4), random(5, 4), random(5)
    assert torch.autograd.gradgradcheck(_Affine.apply, (x, weight, bias))
    penalties = []
    # A gradient penalty after .sum(), where the incoming gradient is a constant.
    for f in (_Affine.apply, torch.nn.functional.linear):
        (slope,) = torch.autograd.grad(f(x, weight, bias).sum(), x, create_graph=True)
        penalties.append(torch.autograd.grad(slope.square().sum(), weight)[0])
    assert penalties[1].abs().sum() > 0
    torch.testing.assert_close(*penalties)


def test_with_relu_outputs_and_derivatives_equal_torchs():
    torch.manual_seed(0)
    x, weight, bias = random(3, 5, 4), random(6, 4), random(6)
    ours = lambda *t: _Affine.apply(*t, True)  # noqa: E731
    torch.testing.assert_close(ours(x, weight, bias), torch.relu(torch.nn.functional.linear(x, weight, bias)))
    assert torch.autograd.gradcheck(ours, (x, weight, bias))
    assert torch.autograd.gradgradcheck(ours, (x, weight, bias))
    torch.testing.assert_close(affine(x, weight, bias, relu=True), ours(x, weight, bias))


@pytest.mark.parametrize("relu", [False, True])
def test_gradients_of_float32_weights_are_float32_for_half_precision_inputs(relu):
    torch.manual_seed(0)
    x = torch.randn(64, 8, dtype=torch.bfloat16, requires_grad=True)
    weight, bias = torch.randn(6, 8, requires_grad=True), torch.randn(6, requires_grad=True)
    y = _Affine.apply(x, weight, bias, relu)
    assert y.dtype == torch.bfloat16
    grads = torch.autograd.grad(y, (x, weight, bias), torch.randn_like(y))
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.float32, torch.float32]


def test_under_torch_func_torchs_linear_is_used(monkeypatch):
    calls = []
    monkeypatch.setattr(_Affine, "apply", lambda *x: calls.append(1) or torch.nn.functional.linear(*x[:3]))
    monkeypatch.setattr(linear, "BIAS_MATMUL_ON", ("cpu",))
    x, weight, bias = random(3, 4), random(5, 4), random(5)
    affine(x, weight, bias)
    assert calls == [1]  # without a transform the fast path is used
    sum_of = lambda *t: affine(*t).sin().sum()  # noqa: E731
    plain = lambda *t: torch.nn.functional.linear(*t).sin().sum()  # noqa: E731
    torch.testing.assert_close(
        torch.func.grad(sum_of, 1)(x, weight, bias), torch.func.grad(plain, 1)(x, weight, bias)
    )
    per_row = torch.func.vmap(torch.func.grad(sum_of, 1), (0, None, None))
    torch.testing.assert_close(per_row(x, weight, bias).sum(0), torch.func.grad(plain, 1)(x, weight, bias))
    torch.testing.assert_close(
        *(torch.func.jvp(f, (x, weight, bias), (x, weight, bias))[1] for f in (sum_of, plain))
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert affine(x, weight, bias).shape == (3, 5)
    with torch.autograd.forward_ad.dual_level():
        affine(torch.autograd.forward_ad.make_dual(x.detach(), x.detach()), weight, bias)
    assert calls == [1]


@pytest.mark.parametrize(
    "options", [{}, {"key_heads": 2}, {"linear_bias": False}, {"memory_dim": 6}, {"rotary": Rotary(2)}]
)
def test_fused_projections_in_training_equal_separate_ones(options, monkeypatch):
    monkeypatch.setattr(multihead, "FUSED_ON", ("cpu",))
    layer = MultiHead(8, 4, **options).double()
    x, memory = random(2, 5, 8), random(2, 3, options.get("memory_dim", 8))
    calls = [(x, memory), (x, memory, memory.detach().clone())] + ([] if "memory_dim" in options else [(x,)])
    for call in calls:
        with torch.no_grad():
            expected = layer(*call)
        torch.testing.assert_close(layer(*call), expected)


def test_the_fused_matmul_gives_every_projection_its_gradient(monkeypatch):
    monkeypatch.setattr(multihead, "FUSED_ON", ("cpu",))
    layer, x = MultiHead(8, 2).double(), random(2, 5, 8)
    q, k, v = layer.project(x, x, x)
    parts = layer.queries(x), layer.keys_values(x, x.clone())
    weights = [x, *(p for name in ("Wq", "Wk", "Wv") for p in getattr(layer, name).parameters())]
    for a, b in zip(
        torch.autograd.grad((q.sin() + k.cos() * v).sum(), weights),
        torch.autograd.grad((parts[0].sin() + parts[1][0].cos() * parts[1][1]).sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("to", [None, torch.bfloat16, torch.float16])
def test_the_fused_linear_on_a_gpu_equals_torchs_linear_in_every_precision(to):
    ours, x = Linear(64, 96).cuda(), torch.randn(7, 300, 64, device="cuda", requires_grad=True)
    with torch.autocast("cuda", to, enabled=to is not None):
        result, expected = (
            affine(x, ours.weight, ours.bias),
            torch.nn.functional.linear(x, ours.weight, ours.bias),
        )
        assert result.dtype == expected.dtype and torch.equal(result, expected)
    grad = torch.randn_like(expected)
    a, b = (torch.autograd.grad(out, (x, ours.weight, ours.bias), grad) for out in (result, expected))
    rounded = [t.detach().to(to or torch.float32).double() for t in (x, ours.weight)]
    rows = grad.double().flatten(0, 1)
    truth = grad.double() @ rounded[1], rows.t() @ rounded[0].flatten(0, 1), rows.sum(0)
    for one, other, true in zip(a, b, truth, strict=True):
        assert one.dtype == torch.float32
        assert (one - true).abs().max() <= 2 * (other - true).abs().max() + 1e-3 * true.abs().max()
