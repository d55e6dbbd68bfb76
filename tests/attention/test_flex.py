"""Flex is compiled once per kind, not per shape. The GPU's tests are in test_cuda.py."""

import functools
import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from regard import ALiBi, Causal, Padding, Window, attend
from regard.attention import Dilated, Documents, Prefix
from regard.attention.kernels import flex

KINDS = {
    "plain": lambda B, T: {},
    "window": lambda B, T: {"mask": Window(T // 10, 5)},
    "window and ALiBi": lambda B, T: {"mask": Causal() & Window(T // 9), "bias": ALiBi(2)},
    "prefix": lambda B, T: {"mask": Causal() | Prefix(T // 5)},
    "documents": lambda B, T: {"mask": Documents((torch.arange(T) // 60).expand(B, T)) & Causal()},
    "padding": lambda B, T: {"mask": Padding(torch.arange(B) * 7 + 50) & ~Dilated(3 + T // 200)},
    "dense": lambda B, T: {"mask": torch.rand(B, 1, T, T) > 0.3, "bias": torch.randn(T, T), "softcap": 5.0},
}


@pytest.fixture(autouse=True)
def empty_caches(monkeypatch):
    torch._dynamo.reset()
    for name, empty in (("_inputs", {}), ("_ready", {}), ("_announced", set()), ("_static_kinds", set())):
        monkeypatch.setattr(flex, name, empty)
    yield
    torch._dynamo.reset()


def use_backend(monkeypatch, backend):
    from torch.nn.attention.flex_attention import flex_attention

    compiled = functools.cache(
        lambda dynamic: torch.compile(flex_attention, dynamic=dynamic, backend=backend)
    )
    monkeypatch.setattr(flex, "_compiled", compiled)


def check(options, B, T, heads=2):
    q, k, v = (torch.randn(B, heads, T, 16) for _ in range(3))
    true = attend(q.double(), k.double(), v.double(), kernel="reference", **options)
    assert torch.allclose(attend(q, k, v, kernel="flex", **options).double(), true, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_one_trace_serves_all_lengths_batches_and_numbers_of_a_kind(name, monkeypatch):
    """Traced as for a GPU and run eagerly, which needs no C++ compiler."""
    counter = CompileCounterWithBackend("aot_eager")
    use_backend(monkeypatch, counter)
    monkeypatch.setattr(flex, "_takes_symbols", lambda call: True)
    for B, T in ((2, 256), (3, 333), (4, 512), (2, 512), (2, 256)):
        check(KINDS[name](B, T), B, T)
    assert counter.frame_count == 1
    assert not flex._static_kinds


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["plain", "window"])
def test_on_a_cpu_bands_are_compiled_once_and_once_more_for_one_sequence(name):
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for B, T in ((1, 512), (2, 700), (3, 1024), (2, 512), (1, 700)):
        check(KINDS[name](B, T), B, T)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before <= 2
    assert not flex._static_kinds


def test_a_kind_that_torch_cannot_compile_with_symbols_is_compiled_for_each_shape(monkeypatch, capsys):
    from torch._dynamo.exc import Unsupported

    calls = []

    def fake(dynamic):
        def run(q, k, v, **options):
            calls.append(dynamic)
            if dynamic:
                raise Unsupported("symbols")
            return attend(q, k, v, mask=Window(9), kernel="reference")

        return run

    monkeypatch.setattr(flex, "_compiled", functools.cache(fake))
    monkeypatch.setattr(flex, "_kind", lambda *call: "window")
    flex._announced.add("window")  # as on a GPU
    for T in (130, 140, 150):
        check({"mask": Window(9)}, 2, T)
    assert calls == [True, False, False, False]
    said = capsys.readouterr().err
    assert said.count("for Window with symbolic sizes, so each new length is compiled") == 1


def test_a_backward_pass_that_cannot_be_compiled_with_symbols_is_computed_with_static_sizes(monkeypatch):
    from torch._dynamo.exc import Unsupported

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise Unsupported("symbols")

    def fake(dynamic):
        out = lambda q, k, v, **options: attend(q, k, v, mask=Window(9), kernel="reference")  # noqa: E731
        return (lambda *qkv, **options: Fails.apply(out(*qkv))) if dynamic else out

    monkeypatch.setattr(flex, "_compiled", functools.cache(fake))
    monkeypatch.setattr(flex.Flex, "refuses", lambda self, call, machine: None)
    q = torch.randn(2, 2, 130, 16, requires_grad=True)
    true = attend(q, q, q, mask=Window(9), kernel="reference").square().sum()
    layers = [attend(q, q, q, mask=Window(9), kernel="flex").square().sum() for _ in range(2)]
    for out in layers:  # both forward passes were compiled with symbols
        (grad,) = torch.autograd.grad(out, q)
        assert torch.allclose(grad, torch.autograd.grad(true, q, retain_graph=True)[0], atol=1e-5)


def test_a_call_after_dynamos_reset_is_compiled_again(monkeypatch):
    use_backend(monkeypatch, "aot_eager")
    monkeypatch.setattr(flex, "_takes_symbols", lambda call: True)
    for _ in range(2):
        check(KINDS["window and ALiBi"](2, 256), 2, 256)
        torch._dynamo.reset()


def test_the_callers_tensors_are_not_marked():
    q = torch.randn(2, 2, 130, 16)
    assert flex._with_static_width(q)._dynamo_static_indices == {1, 3}
    assert not hasattr(q, "_dynamo_static_indices")


def test_kinds_are_named_by_their_classes():
    names = {
        "Window": Window(3),
        "Causal & (Prefix | ~Dilated)": Causal() & (Prefix(2) | ~Dilated(3)),
        "~(Causal & Window)": ~(Causal() & Window(3)),
        "ALiBi": ALiBi(2),
    }
    assert {name: flex._name(x) for name, x in names.items()} == {name: name for name in names}
