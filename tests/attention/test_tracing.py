"""Tracing, compiling, exporting and torch.func, default dtype and device. Covers tracing.py."""

import warnings

import pytest
import torch
from torch import nn

import regard
from regard import (
    Additive,
    ALiBi,
    Bilinear,
    Causal,
    Padding,
    Softmax,
    Window,
    attend,
)
from regard.attention import (
    Diagonal,
    Dilated,
    Documents,
    Entmax,
    RelativeBuckets,
    RelativeVectors,
)
from tests.attention.every_kernel import close, grads, inputs, runs

TRACED = {
    "plain": {},
    "causal": {"mask": Causal()},
    "window": {"mask": Window(9, 3)},
    "alibi": {"mask": Causal(), "bias": ALiBi(2)},
    "dilated": {"mask": Dilated(3)},
    "not diagonal": {"mask": ~Diagonal()},
    "padding": {"mask": Padding(torch.tensor([700, 20]))},
    "documents": {"mask": Documents(torch.arange(700) // 300)},
    "entmax": {"normalize": Entmax(1.5)},
    "soft cap": {"softcap": 4.0},
}


def test_fake_tensors_give_the_output_shape():
    from torch._subclasses.fake_tensor import FakeTensorMode

    for options in TRACED.values():
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            q = torch.randn(2, 2, 700, 16)
            kinds = {n: _faked(x, mode) for n, x in options.items()}
            assert attend(q, q, q, **kinds).shape == q.shape


def _faked(x, mode):
    if isinstance(x, Padding):
        return Padding(mode.from_tensor(x.lengths))
    return Documents(mode.from_tensor(x.ids)) if isinstance(x, Documents) else x


@pytest.mark.parametrize("name", TRACED)
def test_a_device_context_or_another_default_dtype_changes_nothing(name):
    q, k, v = inputs(2, 2, 700, 16, grad=True)
    true = attend(q, k, v, kernel="reference", **TRACED[name])
    with torch.device("meta"):
        for kernel, out in runs(q, k, v, **TRACED[name]):
            assert out.device.type == "cpu", kernel
            assert close(out, true), kernel
            grads(out, (q, k, v))
    torch.set_default_dtype(torch.float64)
    try:
        for kernel, out in runs(q, k, v, **TRACED[name]):
            assert out.dtype == torch.float32, kernel
            assert close(out, true), kernel
            grads(out, (q, k, v))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", TRACED)
def test_make_fx_records_the_computation_and_not_its_result(name):
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v = inputs(2, 2, 700, 16)
    traced = make_fx(lambda q, k, v: attend(q, k, v, **TRACED[name]))(q, k, v)
    other = inputs(2, 2, 700, 16)
    assert close(traced(*other), attend(*other, **TRACED[name]), 1e-4)


def test_jit_trace_records_the_computation():
    q, k, v = inputs(1, 2, 300, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda q, k, v: attend(q, k, v, mask=Causal()), (q, k, v))
        other = inputs(1, 2, 300, 16)
        assert close(traced(*other), attend(*other, mask=Causal()))


def sized(name, T):
    """The same options for another length."""
    if name == "padding":
        return {"mask": Padding(torch.tensor([T, 20]))}
    return {"mask": Documents(torch.arange(T) // 300)} if name == "documents" else TRACED[name]


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile_has_no_graph_break_at_any_size(name, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v, o: attend(q, k, v, **o), fullgraph=True, dynamic=dynamic, backend="aot_eager"
    )
    for T in (700, 90) if dynamic else (700,):
        q, k, v = inputs(2, 2, T, 16, grad=True)
        options = sized(name, T)
        out, true = compiled(q, k, v, options), attend(q, k, v, **options)
        assert close(out, true)
        for a, b in zip(grads(out, (q, k, v)), grads(true, (q, k, v)), strict=True):
            assert close(a, b, 1e-4)


HEADS = {
    "alibi": {"bias": ALiBi(4)},
    "relative buckets": {"bias": RelativeBuckets(4)},
    "relative vectors": {"bias": RelativeVectors(8, heads=4)},
    "gate": {"gate": RelativeVectors(8, heads=4)},
    "bilinear": {"energy": Bilinear(8, heads=4)},
    "additive": {"energy": Additive(8, heads=4)},
    "sinks": {"normalize": Softmax(sinks=torch.zeros(4))},
    "bias": {"bias": torch.zeros(4, 1, 1)},
}


@pytest.mark.parametrize("name", HEADS)
def test_torch_compile_takes_options_per_head_for_symbolic_sizes(name):
    torch._dynamo.reset()

    def function(x):
        return attend(x, x, x, **HEADS[name])

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
    for T in (5, 7):
        x = torch.randn(2, 4, T, 8)
        assert close(compiled(x), function(x))


class Layer(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mha = regard.MultiHead(16, 2, mask=mask)

    def forward(self, x):
        return self.mha(x)


@pytest.mark.parametrize("mask", [None, Causal(), Window(9, 3), ~Diagonal()])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_exported_layer_gives_the_same_output(mask, dynamic):
    layer = Layer(mask).eval()
    x = torch.randn(2, 600, 16)
    shapes = {"x": {1: torch.export.Dim("T", min=2, max=4096)}} if dynamic else None
    program = torch.export.export(layer, (x,), dynamic_shapes=shapes).module()
    for T in (600, 50) if dynamic else (600,):
        x = torch.randn(2, T, 16)
        assert close(program(x), layer(x))


@pytest.mark.parametrize("name", TRACED)
def test_torch_func_vmap_and_grad_agree_with_eager(name):
    options, (q, k, v) = TRACED[name], inputs(3, 2, 2, 700, 16)
    if name == "documents":
        q, k, v = (x[:, :1] for x in (q, k, v))
        options = {"mask": Documents(torch.arange(700) // 300)}
    true = torch.stack([attend(*x, **options) for x in zip(q, k, v, strict=True)])
    assert close(torch.func.vmap(lambda q, k, v: attend(q, k, v, **options))(q, k, v), true, 1e-4)
    f = lambda q: attend(q, k[0], v[0], **options).square().sum()  # noqa: E731
    leaf = q[0].clone().requires_grad_()
    assert close(torch.func.grad(f)(q[0]), torch.autograd.grad(f(leaf), leaf)[0], 1e-3)


def test_forward_mode_derivatives_equal_finite_differences():
    q, k, v = inputs(1, 2, 300, 8, dtype=torch.float64)
    t = torch.randn_like(q)
    for options in ({}, {"mask": Causal()}, {"normalize": Entmax(1.5)}):
        _, tangent = torch.func.jvp(lambda q: attend(q, k, v, **options), (q,), (t,))
        eps = 1e-6
        true = (attend(q + eps * t, k, v, **options) - attend(q - eps * t, k, v, **options)) / (2 * eps)
        assert close(tangent, true, 1e-5)


def test_tensor_subclasses_keep_their_type():
    class Marked(torch.Tensor):
        pass

    q, k, v = (x.as_subclass(Marked) for x in inputs(2, 2, 300, 16))
    out = attend(q, k, v, mask=Causal())
    assert type(out) is Marked
    assert close(
        out.as_subclass(torch.Tensor),
        attend(*(x.as_subclass(torch.Tensor) for x in (q, k, v)), mask=Causal()),
    )
