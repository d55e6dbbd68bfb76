"""The C++ kernel for CPUs: softmax attention with dot-product, distance or additive energies.

It has a backward pass. If the mask is one range of keys per query, it skips all other keys, and its memory is
linear in T; any other mask becomes a dense bias. It is compiled on first use (the result is cached), so it is
optional; `REGARD_NATIVE=0` disables it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.attention import kernel_inputs
from regard.attention.bias import ALiBi
from regard.attention.call import Call
from regard.attention.energy import AdditiveForm, DistanceForm, DotForm
from regard.attention.kernels import native, sdpa
from regard.attention.kernels.kernel import Kernel, grad_of_plain, plain_attention
from regard.attention.machine import Machine


class Cpp(Kernel):
    name = "cpp"

    def refuses(self, call: Call, machine: Machine) -> str | None:
        if machine.kind != "cpu":
            return "it runs on CPUs only"
        if machine.tracer is not None or machine.transform is not None:
            return machine.transform or machine.tracer
        if call.dtype != torch.float32:
            return f"it computes in float32, not {call.dtype}"
        if call.gate is not None or call.dropout:
            return "it has neither gate nor dropout"
        if call.energy.form is None:
            return f"{type(call.energy).__name__} is not a dot product, a distance or additive"
        return sdpa.why_not_softmax(call, "it") or native.unavailable()

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        pairs = call.pairs
        features = call.energy.pair_features(call.query.shape[-1])
        too_few = pairs < 1 << 14 if call.energy.form == "dot" else pairs * features < 1 << 16
        if too_few:
            return f"{pairs} pairs are too few to gain from it"
        if pairs < 1 << 18 and sdpa.Sdpa().refuses(call, machine) is None:
            return f"for {pairs} pairs SDPA is as fast"
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        what = f"{type(call.energy).__name__} with softmax, C++ compiled for this CPU"
        if call.mask is None:
            return what
        return f"{what}, {'the mask as a dense bias' if _has_dense_mask(call) else 'masked keys skipped'}"

    def memory(self, call: Call, machine: Machine) -> int:
        """Key ranges and ALiBi slopes need no memory; every other mask or bias becomes a dense tensor."""
        rows, dense_mask = call.sequences * call.heads * call.Tq * 4, _has_dense_mask(call)
        if not dense_mask and (call.bias is None or _plain_alibi(call) is not None):
            return rows
        copies = 1 if call.bias is None else 2  # the bias, and the bias divided by the temperature or masked
        batch_and_heads = kernel_inputs.dense_shape(call, with_mask=dense_mask)[:-2]
        return rows + copies * 4 * math.prod(batch_and_heads) * call.Tq * call.Tk

    def run(self, call: Call, machine: Machine) -> Tensor:
        start, stop, allowed = _ranges(call)
        slopes, bias = None, None
        if allowed is None and (alibi := _plain_alibi(call)) is not None:
            slopes = torch.tensor(alibi.slopes, dtype=torch.float32, device="cpu")
            slopes = slopes.expand(call.heads) / call.temperature
        elif call.bias is not None:
            values = call.bias.values(call.grid(), call.query)
            if call.bias_may_mask and call.softcap is None:
                seen = allowed if call.mask is None else call.mask.allowed(call.grid())
                values = kernel_inputs.subtract_row_max(values, seen)
            values = kernel_inputs.divide_bias(values, call.temperature)
            bias = call.merge_pairs(values.expand(*values.shape[:-2], call.Tq, call.Tk))
        if allowed is not None:
            bias = _masked(bias, allowed)
        # softmax(cap·tanh(e/cap)/τ) = softmax(cap/τ · tanh(e/τ / (cap/τ)))
        extras = (start, stop, slopes, 0.0 if call.softcap is None else call.softcap / call.temperature)
        if call.energy.form == "additive":
            a, b, w, v = kernel_inputs.additive_inputs(call)
            out = _Additive.apply(a, b, w / call.temperature, v, bias, *extras)
        else:
            inputs = (
                kernel_inputs.distance_inputs(call)
                if call.energy.form == "distance"
                else kernel_inputs.dot_inputs(call, grouped=True)
            )
            out = _Dot.apply(*inputs[:3], bias, inputs[3], *extras, call.energy.form)
        return call.split_batch(out)  # type: ignore[arg-type]


def _has_dense_mask(call: Call) -> bool:
    """Whether the mask is not one range of keys per query."""
    return call.mask is not None and call.mask.key_ranges(call.Tq, call.Tk, call.query.device) is None


def _plain_alibi(call: Call) -> ALiBi | None:
    """The bias if it is ALiBi without an offset, which the kernel computes from its slopes."""
    return call.bias if type(call.bias) is ALiBi and call.bias.offset is None else None


def _ranges(call: Call) -> tuple[Tensor, Tensor, Tensor | None]:
    """Key range [start, stop) of each query, (B or 1, Tq); and a dense mask if there is no such range."""
    all_keys = [torch.full((1, call.Tq), n, dtype=torch.int32, device="cpu") for n in (0, call.Tk)]
    if call.mask is None:
        return *all_keys, None  # type: ignore[return-value]
    ranges = call.mask.key_ranges(call.Tq, call.Tk, call.query.device)
    if ranges is None:
        allowed = call.mask.allowed(call.grid())
        allowed = call.merge_pairs(allowed.expand(*allowed.shape[:-2], call.Tq, call.Tk))
        return *all_keys, allowed  # type: ignore[return-value]
    start, stop = (
        x[None] if x.ndim == 1 else x.expand(*call.leading, -1).reshape(-1, call.Tq) for x in ranges
    )
    start, stop = torch.broadcast_tensors(start, stop)
    return start.to(torch.int32).contiguous(), stop.to(torch.int32).contiguous(), None


def _masked(bias: Tensor | None, allowed: Tensor) -> Tensor:
    if bias is None:
        bias = torch.zeros((), dtype=torch.float32, device=allowed.device)
    return torch.where(allowed, bias, -math.inf)


def _dense_bias(start: Tensor, stop: Tensor, Tk: int, bias: Tensor | None, slopes: Tensor | None) -> Tensor:
    """Ranges, slopes and bias as one dense bias, for the plain formula."""
    j = torch.arange(Tk, device="cpu")
    allowed = ((j >= start[..., None]) & (j < stop[..., None]))[:, None]  # (B or 1, 1, Tq, Tk)
    if slopes is not None:
        distance = (torch.arange(start.shape[-1], device="cpu")[:, None] + Tk - start.shape[-1] - j).abs()
        bias = -slopes[:, None, None] * distance
    return _masked(bias, allowed)


class _Dot(torch.autograd.Function):
    """softmax(cap(scale · q kᵀ − slopes · distance + bias)) v over each query's key range.

    energy="distance" uses −‖q − k‖² instead of q kᵀ.
    """

    @staticmethod
    def forward(
        ctx, q, k, v, bias: Tensor | None, scale: float, start, stop, slopes, cap: float, energy: str
    ) -> Tensor:
        out, norm = native.dot_forward(
            q, k, v, scale, start, stop, slopes=slopes, bias=bias, softcap=cap, energy=energy
        )
        ctx.save_for_backward(q, k, v, bias, start, stop, slopes, out, norm)
        ctx.scale, ctx.cap, ctx.energy = scale, cap, energy
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        q, k, v, bias, start, stop, slopes, out, norm = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
                added = _dense_bias(start, stop, k.shape[2], bias, slopes)
                form = DistanceForm if ctx.energy == "distance" else DotForm
                return plain_attention(form(q, k, ctx.scale), v, added, softcap=ctx.cap)

            return *grad_of_plain(plain, (q, k, v, bias), grad), *[None] * 6
        needs_bias = bias is not None and ctx.needs_input_grad[3]
        dq, dk, dv, dbias = native.dot_backward(
            grad, q, k, v, out, norm, ctx.scale, start, stop,
            slopes=slopes, bias=bias, softcap=ctx.cap, bias_grad=needs_bias, energy=ctx.energy,
        )  # fmt: skip
        return dq, dk, dv, dbias, *[None] * 6


class _Additive(torch.autograd.Function):
    """softmax(cap(Σ w tanh(a + b) − slopes · distance + bias)) v over each query's keys."""

    @staticmethod
    def forward(
        ctx, a: Tensor, b: Tensor, w: Tensor, v: Tensor, bias: Tensor | None, start, stop, slopes, cap: float
    ) -> Tensor:
        out, norm = native.additive_forward(a, b, w, v, start, stop, slopes=slopes, bias=bias, softcap=cap)
        ctx.save_for_backward(a, b, w, v, bias, start, stop, slopes, out, norm)
        ctx.cap = cap
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        a, b, w, v, bias, start, stop, slopes, out, norm = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(a: Tensor, b: Tensor, w: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
                added = _dense_bias(start, stop, b.shape[2], bias, slopes)
                return plain_attention(AdditiveForm(a, b, w), v, added, softcap=ctx.cap)

            return *grad_of_plain(plain, (a, b, w, v, bias), grad), None, None, None, None
        needs_bias = bias is not None and ctx.needs_input_grad[4]
        grads = native.additive_backward(
            grad, a, b, w, v, out, norm, start, stop,
            slopes=slopes, bias=bias, softcap=ctx.cap, bias_grad=needs_bias,
        )  # fmt: skip
        return *grads, None, None, None, None
