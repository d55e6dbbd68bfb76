"""Additive (Bahdanau) attention on NVIDIA GPUs: the Triton kernels of triton_additive.py with autograd.

Energies are written in chunks of queries, then normalised and multiplied by the values, so memory is linear
in T and no program holds both an energy tile and an output tile. Energies and exponentials of small calls are
saved for the backward pass; others are computed again. One query per sequence, as in a recurrent decoder, has
kernels of its own (one_query.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from regard.attention import kernel_inputs
from regard.attention.call import Call
from regard.attention.energy import AdditiveForm
from regard.attention.kernels import one_query, sdpa, triton
from regard.attention.kernels.kernel import Kernel, grad_of_plain, plain_attention
from regard.attention.kernels.triton_launch import padded_dim
from regard.attention.machine import Machine
from regard.attention.precision import HALF
from regard.errors import KernelError

TILE = 64  # positions are padded to multiples of it, as in triton_additive.py
CHUNK_BYTES = 1 << 25  # of energies in one chunk of queries
FAR_PROGRAMS = 528  # for tiles of rare levels: four for each multiprocessor of an H200
MIN_QUERIES = TILE // 4  # with fewer, most of a tile is empty
MAX_SAVED_BYTES = 1 << 26  # up to this size, energies are saved for the backward pass


@dataclass(frozen=True)
class Blocks:
    """Block sizes and warps of each kernel. `benchmarks/gpu/additive.py --sweep` compares several."""

    prepare: tuple[int, int] = (128, 8)  # features, warps
    # Queries and keys (they divide TILE), warps, stages, registers per thread.
    energy: tuple[int, int, int, int, int] = (64, 32, 2, 2, 80)
    # Queries, keys, components of the values, warps, stages. Larger ones spill: tf32x3 splits both operands.
    combine: tuple[int, int, int, int, int] = (32, 32, 128, 4, 2)
    scores: tuple[int, int, int] = (64, 4, 2)  # components of the values, warps, stages
    values: tuple[int, int, int] = (32, 4, 3)  # components of the values, warps, stages
    # Positions, features, warps, stages, registers per thread: 150 and more would cost warps.
    features: tuple[int, int, int, int, int] = (32, 64, 4, 2, 128)


NEAR, FAR = False, True  # values of REST: the usual levels, the others; see triton_additive.py
LAUNCHES = (NEAR, FAR)
BLOCKS = Blocks()  # the best of a sweep on an H200, each kernel by itself: benchmarks/gpu/NOTES.md


class TritonAdditive(Kernel):
    name = "triton-additive"

    def refuses(self, call: Call, machine: Machine) -> str | None:
        interpreted = machine.kind == "cpu" and is_interpreted()
        if not interpreted and (machine.kind != "cuda" or machine.capability < (8, 0)):
            return "our Triton kernels are for NVIDIA GPUs from compute capability 8.0"
        if machine.tracer is not None or machine.transform is not None:
            return machine.transform or machine.tracer
        if not triton.is_installed():
            return "Triton is not installed"
        if call.energy.form != "additive":
            return f"it computes Additive energies, not {type(call.energy).__name__}"
        if (reason := sdpa.why_not_softmax(call, "our Triton kernel")) is not None:
            return reason
        if call.dtype == torch.float64:
            return "it computes in float32, not in float64"
        if call.bias is not None or call.softcap is not None or call.gate is not None:
            return "it has no bias, soft cap or gate"
        return None

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        D = call.energy.pair_features(call.query.shape[-1])
        if call.Tq < MIN_QUERIES and not one_query.fits(call.Tq, call.Tk, D, call.Dv):
            return f"its tiles have {TILE} queries, too many for {call.Tq}"
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        return "Additive energies in reciprocal form by our Triton kernel, keys outside the mask skipped"

    def memory(self, call: Call, machine: Machine) -> int:
        N, D = call.sequences * call.heads, call.energy.pair_features(call.query.shape[-1])
        if one_query.fits(call.Tq, call.Tk, D, call.Dv):
            return 4 * N
        energies = N * _padded(call.Tk) * 4 * max(TILE, min(call.Tq, CHUNK_BYTES // (N * call.Tk * 4)))
        return 2 * energies + N * (_padded(call.Tq) + _padded(call.Tk)) * D * 4

    def run(self, call: Call, machine: Machine) -> Tensor:
        a, b, w, v = kernel_inputs.additive_inputs(call)
        w = w.float() / call.temperature
        return call.split_batch(_Additive.apply(a, b, w, v, _visible_keys(call), call.dropout))  # type: ignore[arg-type]


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True)
class VisibleKeys:
    """A mask as kernels read it: keys start ≤ j < stop of each query, or a tensor with 1 for allowed pairs.

    start and stop: (batch or 1, Tq) in int32; allowed: (batch or 1, heads or 1, Tq, Tk) in uint8. All None:
    every query sees all keys.
    """

    start: Tensor | None = None
    stop: Tensor | None = None
    allowed: Tensor | None = None

    def strides(self) -> tuple[int, int, int]:
        """Batch stride of the ranges, batch and head strides of `allowed`; 0 where they broadcast."""
        rows = 0 if self.start is None or self.start.shape[0] == 1 else self.start.stride(0)
        if self.allowed is None:
            return rows, 0, 0
        batch, heads = self.allowed.shape[:2]
        return rows, self.allowed.stride(0) * (batch > 1), self.allowed.stride(1) * (heads > 1)

    def flags(self) -> dict[str, bool]:
        return {"RANGES": self.start is not None, "DENSE": self.allowed is not None}

    def tensors(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.start, self.stop, self.allowed

    def dense(self, Tk: int) -> Tensor | None:
        """The same as a boolean tensor that broadcasts to (batch, heads, Tq, Tk)."""
        if self.start is None or self.stop is None:
            return None if self.allowed is None else self.allowed.bool()
        j = torch.arange(Tk, device=self.start.device)
        return ((j >= self.start[..., None]) & (j < self.stop[..., None]))[:, None]


def _visible_keys(call: Call) -> VisibleKeys:
    """The mask as `VisibleKeys`, copied because its tensors may change before the backward pass."""
    if call.mask is None:
        return VisibleKeys()
    ranges = call.mask.key_ranges(call.Tq, call.Tk, call.query.device)
    if ranges is not None:
        start, stop = torch.broadcast_tensors(*ranges)
        start, stop = (
            x[None] if x.ndim == 1 else x.expand(*call.leading, -1).reshape(-1, call.Tq)
            for x in (start, stop)
        )
        return VisibleKeys(*(x.clamp(0, call.Tk).to(torch.int32).contiguous() for x in (start, stop)))
    allowed = call.mask.allowed(call.grid())
    allowed = call.merge_pairs(allowed.expand(*allowed.shape[:-2], call.Tq, call.Tk))
    return VisibleKeys(allowed=allowed.to(torch.uint8).contiguous())


class _Additive(torch.autograd.Function):
    """softmax(Σ w tanh(a + b)) v over the visible keys, with dropout on the weights."""

    @staticmethod
    def forward(ctx, a, b, w, v, visible: VisibleKeys, dropout: float) -> Tensor:
        seed = torch.randint(1 << 31, (), device=a.device) if dropout else None
        passes = Passes(a, b, w, v, visible, dropout, seed)
        keep = any(ctx.needs_input_grad[:4])
        out, logs, saved = passes.forward(save=keep)
        if keep:
            ctx.save_for_backward(a, b, w, v, out, logs, seed, *visible.tensors(), *saved)
            ctx.dropout = dropout
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        a, b, w, v, out, logs, seed, start, stop, allowed, *saved = ctx.saved_tensors
        visible = VisibleKeys(start, stop, allowed)
        if torch.is_grad_enabled():
            return *_differentiable(ctx, (a, b, w, v), grad, visible), None, None
        passes = Passes(a, b, w, v, visible, ctx.dropout, seed)
        needs_value = ctx.needs_input_grad[3]
        return *passes.backward(grad, out, logs, saved, needs_value=needs_value), None, None


def _differentiable(
    ctx: FunctionCtx, inputs: tuple[Tensor, ...], grad: Tensor, visible: VisibleKeys
) -> list[Tensor | None]:
    """Gradients that can be differentiated again, by the plain formula."""
    if ctx.dropout:  # type: ignore[attr-defined]
        raise KernelError(
            "kernel='triton-additive' has no second derivatives with dropout; use kernel='reference'"
        )

    def plain(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return plain_attention(AdditiveForm(a, b, w), v, visible.dense(b.shape[2]))

    return grad_of_plain(plain, inputs, grad)


class Passes:
    """Both passes, for a (B, H, Tq, D), b (B, Hk, Tk, D), w (H, D) and v (B, Hk, Tk, Dv)."""

    def __init__(
        self,
        a: Tensor,
        b: Tensor,
        w: Tensor,
        v: Tensor,
        visible: VisibleKeys,
        dropout: float = 0.0,
        seed: Tensor | None = None,
    ) -> None:
        self.a, self.b, self.v = (kernel_inputs.readable(x) for x in (a, b, v))
        self.B, self.H, self.Tq, self.D = a.shape
        self.Hk, self.Tk, self.Dv = v.shape[1:]
        self.groups, self.N = self.H // self.Hk, self.B * self.H
        self.TQP, self.TKP, self.DP = _padded(self.Tq), _padded(self.Tk), -(-self.D // 8) * 8
        self.w, self.w_dtype = torch.nn.functional.pad(w.float(), (0, self.DP - self.D)).contiguous(), w.dtype
        self.visible, self.dropout, self.seed = visible, dropout, seed
        self.mask_flags = {**visible.flags(), "DROPOUT": bool(dropout)}
        # Values of half precision are exact in tf32; float32 ones are split in three products.
        self.precision = "tf32" if v.dtype in HALF else "tf32x3"
        self.asm = a.is_cuda
        self.has_one_query = one_query.fits(self.Tq, self.Tk, self.D, self.Dv)

    def forward(self, *, save: bool) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Output, log2 Σ exp2 of each row, and the tensors to save for the backward pass.

        These are the energies and both results of `_exponentials`, or nothing if the energies are too large.
        """
        out = self.v.new_empty(self.B, self.H, self.Tq, self.Dv)
        logs = self.w.new_empty(self.N, self.Tq)
        if self.has_one_query:
            one_query.forward(self, out, logs)
            return out, logs, ()
        save, saved = save and self._can_save(), ()
        with self.on_device():
            queries, keys = self._exponentials()
            for row0, rows in [(0, self.TQP)] if save else self._chunks():
                energies = self._energies(queries, keys, row0, rows)
                self._combine(energies, row0, rows, out, logs)
                saved = (energies, *queries, *keys) if save else ()
        return out, logs, saved

    def backward(
        self, grad: Tensor, out: Tensor, logs: Tensor, saved: Sequence[Tensor], *, needs_value: bool = True
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Gradients of a, b, w and v, accumulated in float32."""
        grad = kernel_inputs.readable(grad)
        da = self.w.new_empty(self.N, self.Tq, self.D)
        db = self.w.new_empty(self.N, self.Tk, self.D)
        dv = self.w.new_empty(self.N, self.Tk, self.Dv) if needs_value else None
        if self.has_one_query:
            dw = one_query.backward(self, grad, out, logs, da, db, dv)
        else:
            dw = self._tiled_backward(grad, out, logs, saved, da, db, dv)
        return (
            da.view(self.a.shape).to(self.a.dtype),
            self._sum_groups(db, self.b),
            dw.to(self.w_dtype),
            None if dv is None else self._sum_groups(dv, self.v),
        )

    def _tiled_backward(
        self,
        grad: Tensor,
        out: Tensor,
        logs: Tensor,
        saved: Sequence[Tensor],
        da: Tensor,
        db: Tensor,
        dv: Tensor | None,
    ) -> Tensor:
        """Fill da, db and dv; return the gradient of w, (H, D)."""
        products = (out.float() * grad.float()).sum(-1).view(self.N, self.Tq)
        dw = self.w.new_zeros(self.H, self.D)
        with self.on_device():
            if saved:
                queries, keys = saved[1:3], saved[3:]
            else:
                queries, keys = self._exponentials()
            for row0, rows in [(0, self.TQP)] if saved else self._chunks():
                energies = saved[0] if saved else self._energies(queries, keys, row0, rows)
                scores = self._score_gradients(energies, row0, rows, grad, logs, products)
                if dv is not None:
                    self._value_gradients(energies, row0, rows, grad, logs, scores[1], dv)
                del energies
                dw += self._query_gradients(queries, keys, scores, row0, rows, da)
                self._key_gradients(queries, keys, scores, row0, rows, db)
        return dw

    def on_device(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.a.device) if self.a.is_cuda else nullcontext()

    def _can_save(self) -> bool:
        return self.N * self.TQP * self.TKP * 4 <= MAX_SAVED_BYTES

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """First query and number of queries, a multiple of TILE, of each chunk."""
        rows = max(TILE, CHUNK_BYTES // (self.N * self.TKP * 4) // TILE * TILE)
        return ((row0, min(rows, self.TQP - row0)) for row0 in range(0, self.TQP, rows))

    def _exponentials(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """e^{2a} as (batch · heads, padded T, DP) and the level of each tile; the same for b."""
        (ea, la), (eb, lb) = (
            (
                self.w.new_empty(self.B * heads, padded, self.DP),
                torch.empty(self.B * heads, padded // TILE, dtype=torch.int32, device=self.w.device),
            )
            for heads, padded in ((self.H, self.TQP), (self.b.shape[1], self.TKP))
        )
        columns, warps = BLOCKS.prepare
        _kernels().prepare[(la.numel() + lb.numel(),)](
            self.a, self.b, ea, eb, la, lb, *self.a.stride()[:3], *self.b.stride()[:3],
            self.H, self.b.shape[1], self.Tq, self.Tk, la.shape[1], lb.shape[1], la.numel(),
            D=self.D, DP=self.DP, BD=min(columns, padded_dim(self.DP)), num_warps=warps,
        )  # fmt: skip
        return (ea, la), (eb, lb)

    def _energies(self, queries: Sequence[Tensor], keys: Sequence[Tensor], row0: int, rows: int) -> Tensor:
        """Energies of a chunk, (N, rows, TKP), from both results of `_exponentials`."""
        (ea, la), (eb, lb) = queries, keys
        BM, BN, warps, stages, registers = BLOCKS.energy
        out = self.w.new_empty(self.N, rows, self.TKP)
        mask, strides = self.visible.tensors(), self.visible.strides()
        sizes = (self.H, self.groups, self.Tq, self.Tk, row0, rows, self.TQP, self.TKP)
        options = {**self.visible.flags(), "ASM": self.asm, "BM": BM, "BN": BN, "STAGES": stages}
        tiles = self.N * (rows // BM) * (self.TKP // BN)
        _kernels().energies[(tiles,)](
            ea, eb, self.w, la, lb, out, *mask, *strides, *sizes,
            DP=self.DP, **options, num_warps=warps, maxnreg=registers,
        )  # fmt: skip
        if FAR in LAUNCHES:
            _kernels().far_energies[(min(tiles, FAR_PROGRAMS),)](
                ea, eb, self.a, self.b, self.w, la, lb, out, *mask,
                *self.a.stride()[:3], *self.b.stride()[:3], *strides, *sizes, tiles,
                D=self.D, DP=self.DP, **options, num_warps=warps,
            )  # fmt: skip
        return out

    def _combine(self, energies: Tensor, row0: int, rows: int, out: Tensor, logs: Tensor) -> None:
        BM, BN, columns, warps, stages = BLOCKS.combine
        BDV = min(columns, padded_dim(self.Dv))
        _kernels().combine[(self.N * (rows // BM) * -(-self.Dv // BDV),)](
            energies, self.v, out, logs, self.seed, *self.visible.tensors(),
            *self.v.stride()[:3], *self.visible.strides(),
            self.H, self.groups, self.Tq, self.Tk, row0, rows, self.TKP, self.dropout,
            DV=self.Dv, **self.mask_flags, PRECISION=self.precision,
            BM=BM, BN=BN, BDV=BDV, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def _score_gradients(
        self, energies: Tensor, row0: int, rows: int, grad: Tensor, logs: Tensor, products: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the energies, (N, rows, TKP), and which tiles are not all 0."""
        ds = torch.empty_like(energies)
        tiles = (self.N, rows // TILE, self.TKP // TILE)
        active = torch.empty(tiles, dtype=torch.int32, device=ds.device)
        columns, warps, stages = BLOCKS.scores
        _kernels().score_gradients[(active.numel(),)](
            energies, self.v, grad, logs, products, ds, active, self.seed,
            *self.visible.tensors(), *self.v.stride()[:3], *grad.stride()[:3], *self.visible.strides(),
            self.H, self.groups, self.Tq, self.Tk, row0, rows, self.TKP, self.dropout,
            DV=self.Dv, **self.mask_flags, PRECISION=self.precision,
            BDV=min(columns, padded_dim(self.Dv)), num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return ds, active

    def _value_gradients(
        self, energies: Tensor, row0: int, rows: int, grad: Tensor, logs: Tensor, active: Tensor, dv: Tensor
    ) -> None:
        columns, warps, stages = BLOCKS.values
        BDV = min(columns, padded_dim(self.Dv))
        _kernels().value_gradients[(self.N * (self.TKP // TILE) * -(-self.Dv // BDV),)](
            energies, grad, logs, active, dv, self.seed, *self.visible.tensors(),
            *grad.stride()[:3], *self.visible.strides(),
            self.H, self.Tq, self.Tk, row0, rows, self.TKP, self.dropout,
            DV=self.Dv, **self.mask_flags, PRECISION=self.precision, ADD=row0 > 0,
            BDV=BDV, num_warps=warps, num_stages=stages,
        )  # fmt: skip

    def _query_gradients(
        self, queries: Any, keys: Any, scores: Any, row0: int, rows: int, da: Tensor
    ) -> Tensor:
        """Fill the chunk's rows of da; return the gradient of w, (H, D)."""
        (ea, la), (eb, lb), (ds, active) = queries, keys, scores
        BX, BD, warps, stages, registers = BLOCKS.features
        partial = self.w.new_empty(self.N, rows // BX, self.D)
        for rest in LAUNCHES:
            _kernels().feature_gradients[(self.N * (rows // BX) * -(-self.DP // BD),)](
                ea, eb, self.a, self.b, self.w, la, lb, ds, active, da, partial,
                *self.a.stride()[:3], *self.b.stride()[:3], self.TKP, 1, self.TKP // TILE, 1,
                self.H, 1, self.groups, row0, 0, self.Tq, self.Tk, rows, self.TKP, self.TQP, self.TKP,
                D=self.D, DP=self.DP, WEIGHTS=True, ADD=False, ASM=self.asm, REST=rest,
                BX=BX, BD=BD, STAGES=stages, num_warps=warps, maxnreg=registers,
            )  # fmt: skip
        return partial.view(self.B, self.H, -1, self.D).sum((0, 2))

    def _key_gradients(self, queries: Any, keys: Any, scores: Any, row0: int, rows: int, db: Tensor) -> None:
        """Add the gradient through the chunk's queries to db, (N, Tk, D)."""
        (ea, la), (eb, lb), (ds, active) = queries, keys, scores
        BX, BD, warps, stages, registers = BLOCKS.features
        for rest in LAUNCHES:
            _kernels().feature_gradients[(self.N * (self.TKP // BX) * -(-self.DP // BD),)](
                eb, ea, self.b, self.a, self.w, lb, la, ds, active, db, None,
                *self.b.stride()[:3], *self.a.stride()[:3], 1, self.TKP, 1, self.TKP // TILE,
                self.H, self.groups, 1, 0, row0, self.Tk, self.Tq, self.TKP, rows, self.TKP, self.TQP,
                D=self.D, DP=self.DP, WEIGHTS=False, ADD=row0 > 0, ASM=self.asm, REST=rest,
                BX=BX, BD=BD, STAGES=stages, num_warps=warps, maxnreg=registers,
            )  # fmt: skip

    def _sum_groups(self, grad: Tensor, x: Tensor) -> Tensor:
        """(N, Tk, ·) for query heads → the shape of x, summed over the query heads of each key head."""
        grad = grad.view(self.B, self.Hk, self.groups, *grad.shape[1:])
        return (grad.sum(2) if self.groups > 1 else grad[:, :, 0]).to(x.dtype)


def _kernels() -> Any:
    from regard.attention.kernels import triton_additive

    return triton_additive


def _padded(T: int) -> int:
    return -(-T // TILE) * TILE
