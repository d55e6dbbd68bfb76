"""A few queries at a time: memory linear in T, any energy, mask, bias and normaliser, and no work on keys nobody in a tile sees.

Where the call is a softmax over dot products, each tile is one fused SDPA and the backward pass is written out, so that the
cost of a window is linear in T and a causal mask costs half. Every other call computes its tiles as the reference does and,
when it learns, computes them again in the backward pass instead of keeping them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from regard.attention.call import Call
from regard.attention.energy import Custom, Distance
from regard.attention.grid import Grid
from regard.attention.kernels import reference, sdpa
from regard.attention.machine import Machine
from regard.attention.normalize import CustomNormalizer, Softmax

CACHE = {"cpu": 1 << 20, "cuda": 1 << 27}  # numbers in one plain tile: what a core's cache holds, what fills a GPU
KEPT = 1 << 23  # pairs whose weights are kept for the backward pass; beyond, tiles are computed again there
ROWS = 64  # queries in a fused tile
NOWHERE = 1 << 40


@dataclass(frozen=True)
class Tile:
    """Some queries of some sequences, the keys they may see together, and whether every pair among them is allowed."""

    batch: slice
    queries: slice
    keys: slice
    full: bool

    def grid(self, call: Call) -> Grid:
        batch = (self.batch,) if len(call.leading) == 1 else None
        return call.grid(queries=self.queries, keys=self.keys, batch=batch)


def why_not(call: Call, machine: Machine) -> str | None:
    if machine.compiling:
        return "torch.compile fuses the reference itself"
    if isinstance(call.energy, Custom) or isinstance(call.normalize, CustomNormalizer):
        return (
            "a function may depend on all it is given, so it gets the whole matrix; a subclass of Energy or Normalizer may be cut"
        )
    return None


def why_not_fused(call: Call, machine: Machine) -> str | None:
    """Why the tiles of this call cannot be fused SDPA, or None."""
    if machine.kind != "cpu":
        return "fused tiles are for the CPU"
    reason = sdpa.why_not(call, machine)
    if reason is None and call.dot is not None and call.dot.query.shape[-1] != call.Dv:
        reason = f"the values are {call.Dv} wide and the keys {call.dot.key.shape[-1]}"
    return reason


def cover(call: Call, rows: int, apart: bool) -> list[Tile]:
    """Tiles over what the mask allows, in the order of the queries.

    `apart` gives sequences that see different keys (padding, packed documents) tiles of their own where that saves work.
    """
    every, steps = slice(0, call.sequences), [slice(i, min(i + rows, call.Tq)) for i in range(0, call.Tq, rows)]
    runs = None if call.mask is None else call.mask.runs(call.Tq, call.Tk, call.query.device)
    if runs is None:
        return [Tile(every, q, slice(0, call.Tk), call.mask is None) for q in steps]
    low, high, full = _bounds(call, *runs, rows)
    common_low, common_high = low.amin(0), high.amax(0)
    if len(low) > 1:
        work = (high - low).clamp(min=0).sum() / ((common_high - common_low).clamp(min=0).sum() * len(low)).clamp(min=1)
        apart = apart and len(call.leading) == 1 and float(work) < 0.8
        if not apart:
            same = (low == common_low).all(0) & (high == common_high).all(0)
            low, high, full = common_low[None], common_high[None], (full.all(0) & same)[None]
    bounds = zip(low.tolist(), high.tolist(), full.tolist(), strict=True)
    return [
        Tile(every if len(low) == 1 else slice(b, b + 1), q, slice(min(s, e), e), f)
        for b, row in enumerate(bounds)
        for q, s, e, f in zip(steps, *row, strict=True)
    ]


def _bounds(call: Call, start: Tensor, stop: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """First key, last key + 1 and fullness of each step of queries, (1 or sequences, steps)."""

    def steps(x: Tensor, fill: int) -> Tensor:
        x = x[None] if x.ndim == 1 else x.expand(*call.leading, -1).reshape(-1, x.shape[-1])
        return pad(x, (0, -call.Tq % rows), value=fill).unflatten(-1, (-1, rows))

    first, last, real = steps(start, NOWHERE), steps(stop, -1), steps(torch.ones_like(start), 0) > 0
    empty = first >= last
    low = first.masked_fill(empty, NOWHERE).amin(-1)
    high = last.masked_fill(empty, 0).amax(-1)
    full = (((first == low[..., None]) & (last == high[..., None])) | ~real).all(-1)
    return low, high, full


def run(call: Call, machine: Machine) -> Tensor:
    if min(call.query.numel(), call.key.numel(), call.value.numel()) and why_not_fused(call, machine) is None:
        return _run_fused(call)
    return _run_plain(call)


def _run_fused(call: Call) -> Tensor:
    assert call.dot is not None and isinstance(call.normalize, Softmax)
    query, key, scale = call.dot
    q, k, v = (call.four(call.as_many_heads(x)) for x in (query, key, call.value))
    return call.back(_FusedTiles.apply(q, k, v, scale / call.normalize.temperature, call, cover(call, ROWS, apart=True)))


def _added(call: Call, tile: Tile) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """What to add to the energies of a tile, which rows see anything and which keys are seen (None: all)."""
    if tile.full and call.bias is None:
        return None, None, None
    grid = tile.grid(call)
    allowed = None if tile.full or call.mask is None else call.mask.allowed(grid)
    if call.bias is None:
        assert allowed is not None
        added = torch.zeros(allowed.shape, dtype=call.dtype).masked_fill_(~allowed, -math.inf)
    else:
        query = reference.cut(call, grid).query if call.bias.uses_query else call.query
        added = call.bias.values(grid, query).detach() / sdpa.temperature(call)
        added = added if allowed is None else torch.where(allowed, added, -math.inf)
    n, m = tile.queries.stop - tile.queries.start, tile.keys.stop - tile.keys.start
    added = sdpa.pairs(call, added.expand(*added.shape[:-2], n, m))
    if tile.full and not call.bias_may_mask:
        return added, None, None
    seen = added > -math.inf
    rows, keys = seen.any(-1, keepdim=True), seen.any(-2)[..., None]
    all_rows, all_keys = bool(rows.all()), bool(keys.all())
    return (added if all_rows else added.masked_fill(~rows, 0.0)), (None if all_rows else rows), (None if all_keys else keys)


def _only(x: Tensor, keep: Tensor | None) -> Tensor:
    return x if keep is None else x.masked_fill(~keep, 0.0)


class _FusedTiles(torch.autograd.Function):
    """softmax(scale · q kᵀ + added) v, tile by tile, both passes by torch's flash kernel for the CPU."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, scale: float, call: Call, tiles: list[Tile]) -> Tensor:  # noqa: ANN001
        B, H, Tq, _ = q.shape
        out = q.new_zeros(B, Tq, H, v.shape[-1]).transpose(1, 2)
        sums = torch.zeros(B, Tq, H, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32).transpose(1, 2)
        for tile in tiles:
            b, i, j = tile.batch, tile.queries, tile.keys
            if j.start >= j.stop:
                continue
            added, rows, keys = _added(call, tile)
            part, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q[b, :, i], _only(k[b, :, j], keys), _only(v[b, :, j], keys), 0.0, False, attn_mask=added, scale=scale
            )
            out[b, :, i], sums[b, :, i] = _only(part, rows), lse
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.scale, ctx.call, ctx.tiles = scale, call, tiles
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):  # noqa: ANN001, ANN205
        q, k, v, out, sums = ctx.saved_tensors
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for tile in ctx.tiles:
            b, i, j = tile.batch, tile.queries, tile.keys
            if j.start >= j.stop:
                continue
            added, rows, keys = _added(ctx.call, tile)
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _only(grad[b, :, i], rows), q[b, :, i], _only(k[b, :, j], keys), _only(v[b, :, j], keys),
                out[b, :, i], sums[b, :, i], 0.0, False, attn_mask=added, scale=ctx.scale,
            )  # fmt: skip
            dq[b, :, i] = parts[0]
            dk[b, :, j] += parts[1]
            dv[b, :, j] += parts[2]
        return dq, dk, dv, None, None, None


def _run_plain(call: Call) -> Tensor:
    key, value = call.grouped(call.key), call.grouped(call.value)
    again = call.learns and call.sequences * call.heads * call.Tq * call.Tk > KEPT

    def one(tile: Tile, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights, allowed = reference.weigh(call, reference.Part(tile.grid(call), query, key))
        return reference.combine(call, weights, allowed, value)

    parts = []
    for tile in cover(call, plain_rows(call), apart=False):
        args = (tile, call.query[..., tile.queries, :], key[..., tile.keys, :], value[..., tile.keys, :])
        parts.append(checkpoint(one, *args, use_reentrant=False) if again else one(*args))
    full = (*call.leading, call.heads, call.Tq, call.Dv)
    return torch.cat([p.expand(*full[:-2], *p.shape[-2:]) for p in parts], -2) if parts else call.query.new_zeros(full)


def tile_size(device: torch.device) -> int:
    return CACHE.get(device.type, CACHE["cpu"])


def plain_rows(call: Call) -> int:
    """How many queries a plain tile holds."""
    wide = call.query.shape[-1] if isinstance(call.energy, Distance) else getattr(call.energy, "hidden", 1)
    rows = tile_size(call.query.device) // max(1, call.sequences * call.heads * call.Tk * wide)
    return max(1, min(rows if rows < 8 else rows // 8 * 8, call.Tq))
