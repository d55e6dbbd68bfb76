"""The `triton` kernel for NVIDIA GPUs: half-precision softmax and sigmoid attention over bands of keys.

It supports windows, causal masks with any offset, padded batches and ALiBi (slopes in float32), also
combined. Its GPU code (triton_band.py) is compiled once per head size and kind of bias, not per shape or
window; triton_launch.py launches it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from regard.attention import kernel_inputs
from regard.attention.bias import ALiBi
from regard.attention.call import Call
from regard.attention.energy import DotForm
from regard.attention.kernels import sdpa
from regard.attention.kernels.kernel import Kernel, Shortcut, grad_of_plain, plain_attention
from regard.attention.kernels.triton_launch import (
    LOG2E,
    Band,
    PreparedForward,
    Slopes,
    banded,
    banded_backward,
)
from regard.attention.machine import Machine
from regard.attention.mask import And, Mask
from regard.attention.normalize import Sigmoid, Softmax
from regard.attention.position_masks import Padding
from regard.attention.precision import HALF

MAX_DIM = 256  # of a query, key or value


class Triton(Kernel):
    name = "triton"
    reads_unseen = False

    def refuses(self, call: Call, machine: Machine) -> str | None:
        if machine.kind != "cuda" or machine.capability < (8, 0):
            return "our Triton kernels are for NVIDIA GPUs from compute capability 8.0"
        if machine.tracer is not None or machine.transform is not None:
            return machine.transform or machine.tracer
        if not is_installed():
            return "Triton is not installed"
        if not call.is_empty and has_sinks(call):
            if not sdpa.TEMPERATURES[0] <= call.temperature <= sdpa.TEMPERATURES[1]:
                return f"a temperature of {call.temperature:g} may overflow there"
        elif is_sigmoid(call):
            if call.is_empty:
                return "there is nothing to compute"
        elif not call.is_softmax and not has_sinks(call):
            return f"it normalises by softmax or sigmoid, not by {type(call.normalize).__name__}"
        elif (reason := sdpa.why_not_softmax(call, "our Triton kernel")) is not None:
            return reason
        if call.energy.form != "dot":
            return f"{type(call.energy).__name__} is not a dot product"
        if call.dtype not in HALF:
            return f"it computes in bfloat16 and float16, not in {str(call.dtype).removeprefix('torch.')}"
        if call.softcap is not None or call.gate is not None or call.dropout:
            return "it has no soft cap, gate or dropout"
        if max(call.query.shape[-1], call.key.shape[-1], call.Dv) > MAX_DIM:
            return f"it takes vectors of at most {MAX_DIM} components"
        is_alibi = type(call.bias) is ALiBi and not isinstance(call.bias.offset, Tensor)
        if call.bias is not None and not is_alibi:
            return "the only bias it supports is ALiBi"
        if band_of(call.mask, call) is None:
            return "the only masks it supports are a band of keys and padding (Causal, Window, Padding)"
        return None

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        if has_sinks(call) or is_sigmoid(call):
            return None
        if call.bias is None and (call.mask is None or sdpa.is_torch_causal(call)):
            return "SDPA has fused kernels for plain and causal attention, which are faster"
        if call.bias is None and type(call.mask) is Padding and call.requires_grad and not machine.capturing:
            return "SDPA's backward pass, which is not in Python, takes less host time"
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        return "our Triton kernel reads only the keys that the mask allows"

    def memory(self, call: Call, machine: Machine) -> int:
        return 0 if is_sigmoid(call) else call.sequences * call.heads * call.Tq * 4

    def run(self, call: Call, machine: Machine) -> Tensor:
        q, k, v, scale = kernel_inputs.dot_inputs(call, grouped=True)
        if k.shape[1] == 1 < call.heads:
            k, v = (x.expand(-1, call.heads, -1, -1) for x in (k, v))
        band, slopes = band_of(call.mask, call), slopes_of(call)
        assert band is not None
        sinks = sinks_of(call)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, sinks)):
            out = _Attention.apply(q, k, v, sinks, scale, band, slopes, call, call.mask)
            return call.split_batch(out)  # type: ignore[arg-type]
        sigmoid = is_sigmoid(call)
        return call.split_batch(banded(q, k, v, scale, band, slopes, sinks, logs=False, sigmoid=sigmoid)[0])

    def shortcut(self, call: Call, machine: Machine) -> Shortcut | None:
        """Launch with precomputed arguments; without gradients, for contiguous tensors only."""
        band = band_of(call.mask, call)
        scale = kernel_inputs.plain_scale(call)
        if band is None or scale is None or len(call.leading) != 1 or has_sinks(call):
            return None
        q, k, v = call.query, call.key, call.value
        if not q.shape[0] == k.shape[0] == v.shape[0]:
            return None
        if not k.shape[1] == v.shape[1] == call.heads // call.groups:
            return None
        if band.lengths is not None and band.lengths.shape != call.leading:
            return None
        if call.requires_grad:
            return _training_shortcut(call, scale, band)
        launch = PreparedForward(q, k, v, scale, band, slopes_of(call), sigmoid=is_sigmoid(call))
        is_padded = band.lengths is not None

        def run(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor | None:
            lengths = lengths_of(mask) if is_padded else None
            return launch(q, k, v, lengths) if launch.accepts(q, k, v) else None

        return run


def _training_shortcut(call: Call, scale: float, band: Band) -> Shortcut:
    """Run with the autograd function directly; the band's lengths are those of the current mask."""
    low, high, is_padded, slopes = band.low, band.high, band.lengths is not None, slopes_of(call)
    # The shortcut outlives the call, so it must not hold its tensors; a slice of them would.
    empty = call.query.new_empty(0)
    options = replace(call, query=empty, key=empty, value=empty, mask=None)

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
        current = Band(low, high, lengths_of(mask) if is_padded else None)
        return _Attention.apply(q, k, v, None, scale, current, slopes, options, mask)  # type: ignore[return-value]

    return run


def lengths_of(mask: Mask | None) -> Tensor | None:
    """The lengths of the Padding in a mask that `band_of` accepts."""
    if type(mask) is Padding:
        return mask.lengths if isinstance(mask.lengths, Tensor) else None
    if type(mask) is And:
        lengths = lengths_of(mask.a)
        return lengths_of(mask.b) if lengths is None else lengths
    return None


@lru_cache(maxsize=1)
def is_installed() -> bool:
    return find_spec("triton") is not None


def band_of(mask: Mask | None, call: Call) -> Band | None:
    """The mask as a band and a number of keys per sequence; None if it cannot be expressed so."""
    Tq, Tk = call.Tq, call.Tk
    if mask is None:
        return Band(-Tq, Tk)
    if type(mask) is And:
        a, b = band_of(mask.a, call), band_of(mask.b, call)
        if a is None or b is None or (a.lengths is not None and b.lengths is not None):
            return None
        return Band(max(a.low, b.low), min(a.high, b.high), b.lengths if a.lengths is None else a.lengths)
    if type(mask) is Padding and isinstance(mask.lengths, Tensor):
        return Band(-Tq, Tk, _lengths_of_merged_batch(mask.lengths, call))
    limits = mask.static_band(Tq, Tk)
    return None if limits is None else Band(*limits)


def _lengths_of_merged_batch(lengths: Tensor, call: Call) -> Tensor:
    """Lengths for several batch axes, as `Call.merge_batch` merges them; those for one axis unchanged."""
    return lengths if len(call.leading) <= 1 else lengths.expand(call.leading).reshape(-1)


def slopes_of(call: Call) -> Slopes:
    """The slopes of the call's ALiBi, if it has one."""
    if call.bias is None:
        return Slopes()
    assert type(call.bias) is ALiBi
    shift = call.Tk - call.Tq if call.bias.offset is None else call.bias.offset
    assert not isinstance(shift, Tensor)
    return Slopes(_slopes(call.bias.heads, call.heads, call.temperature, call.query.device), shift)


def why_not_plain_softmax(call: Call, machine: Machine) -> str | None:
    """Why a kernel that takes what `triton` does, but a softmax without sinks only, cannot run the call."""
    if machine.kind == "cuda" and not call.is_softmax:
        return "it normalises by softmax only, without sinks"
    return Triton().refuses(call, machine)  # also tracing


def has_sinks(call: Call) -> bool:
    return type(call.normalize) is Softmax and call.normalize.sinks is not None


def is_sigmoid(call: Call) -> bool:
    return type(call.normalize) is Sigmoid


def sinks_of(call: Call) -> Tensor | None:
    """The softmax's sinks, one per head, in base 2 and divided by the temperature."""
    if not has_sinks(call):
        return None
    sinks: Tensor = call.normalize.sinks  # type: ignore[attr-defined]
    return (sinks.float() * (LOG2E / call.temperature)).expand(call.heads).contiguous()


@lru_cache(maxsize=64)
def _slopes(alibi_heads: int, heads: int, temperature: float, device: torch.device) -> Tensor:
    slopes = torch.tensor(ALiBi(alibi_heads).slopes, dtype=torch.float64, device="cpu") * LOG2E / temperature
    return slopes.expand(heads).to(device, torch.float32).contiguous()


class _Attention(torch.autograd.Function):
    """The Triton kernels with gradients; second derivatives are those of the plain formula."""

    @staticmethod
    def forward(
        ctx, q, k, v, sinks, scale: float, band: Band, slopes: Slopes, call: Call, mask: Mask | None
    ) -> Tensor:
        sigmoid = is_sigmoid(call)
        out, logs = banded(q, k, v, scale, band, slopes, sinks, sigmoid=sigmoid)
        ctx.save_for_backward(q, k, v, sinks, None if sigmoid else out, logs, band.lengths)
        ctx.options = scale, band, slopes, call, mask
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        q, k, v, sinks, out, logs, _ = ctx.saved_tensors
        scale, band, slopes, call, mask = ctx.options
        no_grads = (None,) * 5
        if torch.is_grad_enabled():
            with torch.no_grad():
                added = kernel_inputs.dense_bias(replace(call, query=q, key=k, value=v, mask=mask))
            plain = lambda q, k, v, s: _plain(q, k, v, s, scale, added, is_sigmoid(call))  # noqa: E731
            return *grad_of_plain(plain, (q, k, v, sinks), grad), *no_grads
        dq, dk, dv, products = banded_backward(q, k, v, out, logs, grad, scale, band, slopes)
        dsinks = None
        if sinks is not None:
            # A sink's weight is exp2(sink − logs) and its value is zero; ln 2 because scores are in base 2.
            dsinks = -(torch.exp2(sinks[:, None] - logs) * products).sum((0, 2)) * math.log(2.0)
        return dq, dk, dv, dsinks, *no_grads


def _plain(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, scale: float, added: Tensor | None, sigmoid: bool
) -> Tensor:
    """The definition in plain torch. A sink is one more key with the sink as its energy and value zero."""
    if sinks is not None:
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        sinks = (sinks * math.log(2.0))[:, None, None].expand(1, -1, q.shape[2], 1)
        if added is None:
            added = q.new_zeros((1, q.shape[1], q.shape[2], k.shape[2] - 1), dtype=torch.float32)
        added = added.expand(-1, q.shape[1], -1, -1)
        added = torch.cat([added, sinks.expand(len(added), -1, -1, -1)], -1)
    return plain_attention(DotForm(q, k, scale), v, added, sigmoid=sigmoid)
