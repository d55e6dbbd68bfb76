"""regard's own C++ for the CPU, compiled once on the machine it runs on: softmax attention over dot products and over Bahdanau's
energy, both passes, memory linear in T, only the keys that the mask leaves.

It needs a C++ compiler the first time (the result is cached), so it is never the only way; `REGARD_NATIVE=0` switches it off.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.energy import Additive
from regard.attention.kernels import native, sdpa
from regard.attention.machine import Machine
from regard.attention.normalize import Softmax
from regard.attention.position import ALiBi


def why_not(call: Call, machine: Machine) -> str | None:
    if machine.kind != "cpu":
        return "it is written for the CPU"
    if machine.compiling:
        return "torch.compile fuses the reference itself"
    if call.dtype != torch.float32:
        return f"it computes in float32, not {call.dtype}"
    if not isinstance(call.normalize, Softmax):
        return f"it normalises by softmax, not by {type(call.normalize).__name__}"
    if call.gate is not None or call.dropout:
        return "it has no gate and no dropout"
    additive = isinstance(call.energy, Additive)
    if additive and (call.bias is not None or call.softcap is not None or call.normalize.temperature != 1.0):
        return "its Additive path has no bias, soft cap or temperature"
    if not additive and call.dot is None:
        return f"{type(call.energy).__name__} is neither a dot product here nor Additive"
    if call.bias is not None and call.bias.uses_query and call.learns:
        return "the bias depends on the query and learns"
    if call.mask is not None and call.mask.runs(call.Tq, call.Tk, call.query.device) is None and (additive or call.bias_learns):
        return "the mask does not leave one run of keys per query"
    if not (call.Tq and call.Tk and call.sequences and call.heads and call.Dv):
        return "there is nothing to compute"
    return native.unavailable()


def run(call: Call, machine: Machine) -> Tensor:
    if isinstance(call.energy, Additive):
        return _run_additive(call)
    assert call.dot is not None and isinstance(call.normalize, Softmax)
    query, key, scale = call.dot
    start, stop, extra = _runs(call)
    temperature = call.normalize.temperature
    slopes, bias = None, None
    if isinstance(call.bias, ALiBi) and call.bias.offset is None and extra is None:
        slopes = torch.tensor(call.bias.slopes).expand(call.heads).contiguous()
    elif call.bias is not None:
        values = call.bias.values(call.grid(), call.query)
        bias = sdpa.pairs(call, values.expand(*values.shape[:-2], call.Tq, call.Tk))
    if extra is not None:
        bias = torch.where(extra, 0.0 if bias is None else bias, -torch.inf)
    cap = 0.0 if call.softcap is None else call.softcap
    if temperature != 1.0:  # softmax(cap·tanh(e/cap)/τ) = softmax(cap/τ · tanh(e/τ / (cap/τ)))
        scale, cap = scale / temperature, cap / temperature
        slopes, bias = (None if x is None else x / temperature for x in (slopes, bias))
    q, k, v = (call.four(x) for x in (query, *_shared_heads(call, key, call.value)))
    if bias is not None and (extra is not None or call.bias_may_mask):
        k, v = sdpa.only_seen(k, bias), sdpa.only_seen(v, bias)
    return call.back(_Dot.apply(q, k, v, bias, scale, start, stop, slopes, cap))


def _shared_heads(call: Call, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with one number of heads; the C++ itself shares a head among a group of queries."""
    if key.shape[-3] == value.shape[-3]:
        return key, value
    return call.as_many_heads(key), call.as_many_heads(value)


def _runs(call: Call) -> tuple[Tensor, Tensor, Tensor | None]:
    """First key and last key + 1 of each query, (B or 1, Tq), and what else the mask says, when runs cannot say it."""
    whole = torch.zeros(1, call.Tq, dtype=torch.int32), torch.full((1, call.Tq), call.Tk, dtype=torch.int32)
    if call.mask is None:
        return *whole, None
    runs = call.mask.runs(call.Tq, call.Tk)
    if runs is None:
        allowed = call.mask.allowed(call.grid())
        return *whole, sdpa.pairs(call, allowed.expand(*allowed.shape[:-2], call.Tq, call.Tk))
    start, stop = (x[None] if x.ndim == 1 else x.expand(*call.leading, -1).reshape(-1, call.Tq) for x in runs)
    start, stop = torch.broadcast_tensors(start, stop)
    return start.to(torch.int32).contiguous(), stop.to(torch.int32).contiguous(), None


def _run_additive(call: Call) -> Tensor:
    energy = call.energy
    assert isinstance(energy, Additive)
    start, stop, _ = _runs(call)
    a, b = energy.Wq(call.query), energy.Wk(call.key)
    v = energy.v if energy.v.ndim == 2 else energy.v[None]
    key, value = _shared_heads(call, b, call.value)
    return call.back(_Additive.apply(call.four(a), call.four(key), v.expand(call.heads, -1), call.four(value), start, stop))


class _Dot(torch.autograd.Function):
    """softmax(cap(scale · q kᵀ − slopes · distance + bias)) v over each query's run of keys."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, start, stop, slopes, cap: float) -> Tensor:  # noqa: ANN001
        out, norm = native.dot_forward(q, k, v, scale, start, stop, slopes=slopes, bias=bias, softcap=cap)
        ctx.save_for_backward(q, k, v, bias, start, stop, slopes, out, norm)
        ctx.scale, ctx.cap = scale, cap
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):  # noqa: ANN001, ANN205
        q, k, v, bias, start, stop, slopes, out, norm = ctx.saved_tensors
        wanted = bias is not None and ctx.needs_input_grad[3]
        dq, dk, dv, dbias = native.dot_backward(
            grad, q, k, v, out, norm, ctx.scale, start, stop, slopes=slopes, bias=bias, softcap=ctx.cap, bias_grad=wanted
        )
        return dq, dk, dv, dbias, None, None, None, None, None


class _Additive(torch.autograd.Function):
    """softmax(Σ w tanh(a + b)) v over each query's run of keys."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, w: Tensor, v: Tensor, start: Tensor, stop: Tensor) -> Tensor:  # noqa: ANN001
        out, norm = native.additive_forward(a, b, w, v, start, stop)
        ctx.save_for_backward(a, b, w, v, start, stop, out, norm)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):  # noqa: ANN001, ANN205
        a, b, w, v, start, stop, out, norm = ctx.saved_tensors
        return *native.additive_backward(grad, a, b, w, v, out, norm, start, stop), None, None
