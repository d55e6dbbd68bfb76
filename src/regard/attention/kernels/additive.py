"""Additive (Bahdanau) attention on a CPU without the Tq×Tk×D tensor and without tanh.

tanh(a + b) = 1 − 2/(1 + e^{2a}·e^{2b}), so exponentials are computed once per query or key and feature, and
a pair costs one multiply-add, one reciprocal and one more multiply-add per feature. Accurate to float32 for
|a|, |b| ≤ 44; for larger values e^{2a} overflows and torch.tanh is used. The tiled kernel does the rest, so
any mask, bias and normaliser works.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.energy import AdditiveForm, Energy
from regard.attention.kernels import tiled
from regard.attention.kernels.kernel import Kernel, grad_of_plain
from regard.attention.machine import Machine

LIMIT = {torch.float32: 44.0, torch.float64: 350.0}  # a little below the largest |a| with a finite e^{2a}
BLOCK = 1 << 20  # elements in one block of pairs × features


class AdditiveTiles(Kernel):
    """Additive energies in reciprocal form, in the tiles of the tiled kernel."""

    name = "additive"

    def refuses(self, call: Call, machine: Machine) -> str | None:
        if call.energy.form != "additive":
            return f"it computes Additive energies, not {type(call.energy).__name__}"
        if machine.kind != "cpu":
            return "it runs on CPUs only"
        if (reason := tiled.why_not(call, machine)) is not None:
            return reason
        if call.options_use_query:
            return "the bias or gate depends on the queries, which this kernel replaces by their projections"
        if call.dtype not in LIMIT:
            return f"it computes in float32 and float64, not {call.dtype}"
        return None

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        if call.Tq < 8:
            return f"{call.Tq} queries per sequence are too few to share the exponentials of the keys"
        work = call.pairs * call.energy.pair_features(call.query.shape[-1])
        return f"{call.pairs} pairs are too few to gain" if work < 1 << 20 else None

    def describe(self, call: Call, machine: Machine) -> str:
        return "Additive energies in reciprocal form, no Tq×Tk×D tensor"

    def memory(self, call: Call, machine: Machine) -> int:
        return tiled.tile_bytes(call)

    def run(self, call: Call, machine: Machine) -> Tensor:
        a, b, v = call.energy.as_additive(call.query, call.grouped(call.key))
        value = call.grouped(call.value)
        return tiled.run_plain(
            replace(
                call, query=a, key=b, value=value, groups=1, energy=_ReciprocalAdditive(v, call.energy.heads)
            )
        )


class _ReciprocalAdditive(Energy):
    """Additive energy of projected queries and keys, in reciprocal form unless it would overflow."""

    def __init__(self, v: Tensor, heads: int | None) -> None:
        self.v, self.heads = v, heads

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        limit = LIMIT[a.dtype]
        if not a.numel() or not b.numel() or not (_max_abs(a) <= limit and _max_abs(b) <= limit):
            return AdditiveForm(a, b, self.v).energies()
        return _Scores.apply(a, b, self.v)  # type: ignore[return-value]

    def tensors(self) -> tuple[Tensor, ...] | None:
        return (self.v,)


def _max_abs(x: Tensor) -> float:
    return float(x.detach().abs().max())


def _blocks(a: Tensor, b: Tensor, v: Tensor):  # noqa: ANN202
    """For each batch entry and block of queries: their indices, and 1 + e^{2a}e^{2b} as (rows, Tk, D)."""
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2], v.shape[:-2])
    ea, eb = ((2 * x).exp().expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (a, b))
    N, Tq, D = ea.shape
    Tk = eb.shape[-2]
    rows = max(1, min(Tq, BLOCK // max(1, Tk * D)))
    one, buffer = ea.new_ones(()), ea.new_empty(rows * Tk * D)
    for n in range(N):
        for i in range(0, Tq, rows):
            block = ea[n, i : i + rows]
            p = buffer[: len(block) * Tk * D].view(len(block), Tk, D)
            torch.addcmul(one, block[:, None], eb[n][None], out=p)
            yield n, slice(i, i + len(block)), p


class _Scores(torch.autograd.Function):
    """Σ_d v_d tanh(a_id + b_jd), (..., Tq, Tk)."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(a, b, v)
        w = v[:, None, :] if v.ndim == 2 else v[None]  # (heads or 1, 1, D) or (1, D)
        lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2], w.shape[:-2])
        out = a.new_empty(*lead, a.shape[-2], b.shape[-2])
        flat, weights = out.view(-1, *out.shape[-2:]), _per_batch(w, lead)
        for n, i, p in _blocks(a, b, w):
            torch.sum(torch.div(weights[n], p, out=p), -1, out=flat[n, i])
        return out.mul_(-2).add_(w.sum(-1, keepdim=True).expand(*lead, 1, 1))

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        a, b, v = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(grad_of_plain(lambda a, b, v: AdditiveForm(a, b, v).energies(), (a, b, v), grad))
        w = v[:, None, :] if v.ndim == 2 else v[None]  # (heads or 1, 1, D) or (1, D)
        lead = grad.shape[:-2]
        flat, weights = grad.reshape(-1, *grad.shape[-2:]), _per_batch(w, lead)
        da, db, dv = (a.new_zeros(len(flat), n, a.shape[-1]) for n in (a.shape[-2], b.shape[-2], 1))
        slope = a.new_empty(0)
        for n, i, p in _blocks(a, b, w):
            r, g = p.reciprocal_(), flat[n, i]
            dv[n, 0].add_(torch.bmm(g[:, None, :], r)[:, 0].sum(0), alpha=-2)
            slope = slope if slope.shape == r.shape else torch.empty_like(r)
            torch.addcmul(r, r, r, value=-1, out=slope)  # r(1 − r) = (1 − tanh²)/4
            da[n, i] = torch.bmm(g[:, None, :], slope)[:, 0]
            # Without contiguous(), bmm takes ten times as long.
            db[n] += torch.bmm(g.t().contiguous()[:, None, :], slope.transpose(0, 1))[:, 0]
        dv += flat.sum((-1, -2))[:, None, None]
        scale = 4 * weights[:, None, :]
        pairs = zip((da.mul_(scale), db.mul_(scale), dv), (a, b, w), strict=True)
        da, db, dw = (d.view(*lead, *d.shape[-2:]).sum_to_size(x.shape) for d, x in pairs)
        return da, db, dw.view(v.shape)


def _per_batch(w: Tensor, lead: torch.Size) -> Tensor:
    """v for each entry of the flattened batch and heads, (N, D)."""
    return w.expand(*lead, 1, w.shape[-1]).reshape(-1, w.shape[-1])
