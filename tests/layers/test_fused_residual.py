"""Fused residual connections: the kernels in Triton's interpreter, when they run, and a GPU's results.

Covers fused_residual.py, residual_kernel.py, fused_parts.py.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

from regard.errors import OptionError
from regard.layers import fused_parts, fused_residual
from regard.layers.fused_parts import is_enabled, use_parts
from regard.layers.residual import Residual
from regard.models.transformer import TransformerOptions
from tests.triton_interpreter import run_interpreted

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def test_the_interpreted_kernels_equal_float64_and_stacks_equal_the_plain_path():
    process = run_interpreted(Path(__file__).with_name("residual_cases.py"))
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]


def test_fused_parts_are_turned_on_and_off_by_name(monkeypatch):
    monkeypatch.delenv(fused_parts.VARIABLE, raising=False)
    for part in fused_parts.PARTS:
        assert is_enabled(part) == (part not in fused_parts.OFF_BY_DEFAULT)
    monkeypatch.setenv(fused_parts.VARIABLE, "residual, loss")
    assert is_enabled("residual") and is_enabled("loss") and not is_enabled("decoding")
    with use_parts("decoding"):
        assert is_enabled("decoding") and not is_enabled("loss")
    monkeypatch.setenv(fused_parts.VARIABLE, "none")
    assert not any(map(is_enabled, fused_parts.PARTS))
    monkeypatch.setenv(fused_parts.VARIABLE, "norms")
    with pytest.raises(OptionError, match="no part 'norms'; there are residual, loss, decoding"):
        is_enabled("loss")


def test_calls_that_the_kernels_do_not_support_use_the_plain_path(monkeypatch):
    monkeypatch.setattr(fused_residual, "is_installed", lambda: True)
    x, identity = torch.randn(512, 16), nn.Identity()

    def fusible(x=x, final=identity, **options):
        return fused_residual.can_fuse(x, [Residual(16, **options)], final)

    assert fusible() and fusible(norm="pre", final=nn.LayerNorm(16)) and fusible(dropout=0.1)
    assert not fusible(x=x[:100])  # too few rows
    assert not fusible(x=x.double())
    assert not fusible(norm="none") and not fusible(norm_kind="rms")
    assert not fusible(norm="pre", final=nn.RMSNorm(16))
    assert not fusible(dropout=1.0) and not fusible(dropout=1e-6)
    assert not fused_residual.can_fuse(x, [Residual(16), Residual(16, norm="pre")], identity)


@pytest.mark.parametrize("path", ["", "norm", "dropout"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_a_hook_on_any_module_of_a_residual_connection_keeps_the_plain_path(path, kind, monkeypatch):
    monkeypatch.setattr(fused_residual, "is_installed", lambda: True)
    x, residual = torch.randn(512, 16), Residual(16, dropout=0.1)
    assert fused_residual.can_fuse(x, [residual], nn.Identity())
    getattr(residual.get_submodule(path), f"register_{kind}_hook")(lambda *_: None)
    assert not fused_residual.can_fuse(x, [residual], nn.Identity())


def make_encoder(norm, dropout=0.0):
    torch.manual_seed(1)
    encoder = TransformerOptions(layers=3, heads=4, inner=256, norm=norm).build_encoder(128, dropout)
    return encoder.cuda().train()


@pytest.mark.cuda
@on_gpu
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_stack_on_a_gpu_is_as_close_to_float64_as_the_plain_path(norm, autocast):
    """Compared with float64, because the gradient of a key bias is 0 but for rounding, in both paths."""
    encoder, results = make_encoder(norm), []
    x = torch.randn(37, 41, 128, device="cuda", dtype=torch.float64)
    grad = torch.randn_like(x)
    for dtype, parts in ((torch.float64, ()), (torch.float32, ()), (torch.float32, ("residual",))):
        encoder.to(dtype).zero_grad()
        leaf = x.to(dtype, copy=True).requires_grad_()
        use_autocast = autocast and dtype == torch.float32
        with use_parts(*parts), torch.autocast("cuda", torch.bfloat16, enabled=use_autocast):
            states = encoder(leaf).states
        states.to(dtype).backward(grad.to(dtype))
        tensors = [states, leaf.grad, *(p.grad for p in encoder.parameters())]
        results.append([tensor.detach().double() for tensor in tensors])
    rounding = (3e-4 if autocast else 1e-6) * max(float(exact.norm()) for exact in results[0])
    for exact, plain, fused in zip(*results, strict=True):
        error = float((plain - exact).norm())
        assert float((fused - exact).norm()) <= 1.5 * error + rounding


@pytest.mark.cuda
@on_gpu
def test_dropout_differs_between_replays_of_a_cuda_graph_and_repeats_with_the_seed():
    encoder, x = make_encoder("post", 0.5), torch.randn(37, 41, 128, device="cuda")
    stream = torch.cuda.Stream()
    with use_parts("residual"), torch.no_grad():
        with torch.cuda.stream(stream):
            encoder(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = encoder(x).states
    outputs = []
    for _ in range(2):
        torch.manual_seed(7)
        for _ in range(2):
            graph.replay()
            outputs.append(out.clone())
    assert torch.equal(outputs[0], outputs[2]) and torch.equal(outputs[1], outputs[3])
    assert not torch.equal(outputs[0], outputs[1])
