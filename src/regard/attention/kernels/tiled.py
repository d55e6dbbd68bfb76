"""Attention in tiles of queries: memory linear in T, any option; keys that a tile cannot see are skipped.

If the call is a softmax over dot products, each tile is one fused SDPA call with a hand-written backward
pass: a window costs linear time, a causal mask half. Other calls compute their tiles as the reference does
and, in training, recompute them in the backward pass (checkpointing).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from regard.attention import kernel_inputs
from regard.attention.call import Call
from regard.attention.energy import Custom, DotForm
from regard.attention.grid import Grid
from regard.attention.kernel_inputs import VersionCheck, readable
from regard.attention.kernels import distances, reference, sdpa
from regard.attention.kernels.kernel import Kernel, grad_of_plain, plain_attention
from regard.attention.machine import Machine
from regard.attention.normalize import CustomNormalizer

TILE_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 27}  # of a plain tile: fits a core's cache, fills a GPU
# Up to this many pairs, weights are saved for the backward pass; beyond, recomputed.
MAX_SAVED_PAIRS = 1 << 23
ROWS = 64  # queries in a fused tile
NO_KEY = 1 << 40  # larger than every position


class Tiled(Kernel):
    name = "tiled"

    def refuses(self, call: Call, machine: Machine) -> str | None:
        return why_not(call, machine)

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        work = call.pairs * call.energy.pair_features(call.query.shape[-1])
        if machine.kind != "cpu":
            return "the full matrix is small enough" if work < 1 << 28 else None
        few = {"dot": 1 << 18, "additive": 1 << 20}.get(call.energy.form or "", 1 << 16)
        return f"{call.pairs} pairs are too few to gain" if work < few else None

    def describe(self, call: Call, machine: Machine) -> str:
        if why_not_fused(call, machine) is None:
            return "fused tiles of queries, keys outside the mask skipped"
        return "tiles of queries, memory linear in T"

    def memory(self, call: Call, machine: Machine) -> int:
        return tile_bytes(call)

    def run(self, call: Call, machine: Machine) -> Tensor:
        if why_not_fused(call, machine) is None:
            return _run_fused(call)
        if machine.kind == "cpu" and call.energy.form == "distance" and call.dtype in distances.DTYPES:
            call = replace(call, energy=distances.NegativeSquaredDistance())
        return run_plain(call)


def why_not(call: Call, machine: Machine) -> str | None:
    """Why the call cannot run in tiles, or None."""
    if machine.tracer is not None or machine.transform is not None:
        return machine.transform or machine.tracer
    if call.is_empty:
        return "there is nothing to compute"
    if isinstance(call.energy, Custom) or isinstance(call.normalize, CustomNormalizer):
        return (
            "a function may depend on the full matrix, so it cannot be tiled; "
            "a subclass of Energy or Normalizer can"
        )
    return None


def why_not_fused(call: Call, machine: Machine) -> str | None:
    """Why the tiles of this call cannot be fused SDPA, or None."""
    return sdpa.Sdpa().refuses(call, machine) or sdpa.why_not_tiles(call, machine)


def tile_bytes(call: Call) -> int:
    """Memory of a few tiles and one number per row."""
    size, features = call.query.element_size() * 4, call.energy.pair_features(call.query.shape[-1])
    tiles = min(tile_elements(call.query.device) * size, call.pairs * size * features)
    return tiles + call.sequences * call.heads * call.Tq * 4


@dataclass(frozen=True)
class QueryTile:
    """Queries of some sequences, the keys that any of them sees, and whether all pairs are allowed."""

    batch: slice
    queries: slice
    keys: slice
    full: bool

    def grid(self, call: Call) -> Grid:
        batch = (self.batch,) if len(call.leading) == 1 else None
        return call.grid(queries=self.queries, keys=self.keys, batch=batch)


def cover(call: Call, rows: int, per_sequence: bool) -> list[QueryTile]:
    """Tiles of `rows` queries that cover all allowed pairs, in the order of the queries.

    `per_sequence` gives sequences that see different keys (padding, packed documents) their own tiles if that
    saves work.
    """
    every = slice(0, call.sequences)
    steps = [slice(i, min(i + rows, call.Tq)) for i in range(0, call.Tq, rows)]
    ranges = None if call.mask is None else call.mask.key_ranges(call.Tq, call.Tk, call.query.device)
    if ranges is None or not call.sequences:
        return [QueryTile(every, q, slice(0, call.Tk), call.mask is None) for q in steps]
    low, high, full = _bounds(call, *ranges, rows)
    common_low, common_high = low.amin(0), high.amax(0)
    if len(low) > 1:
        separate = (high - low).clamp(min=0).sum()
        common = (common_high - common_low).clamp(min=0).sum() * len(low)
        work = float(separate / common.clamp(min=1))
        per_sequence = per_sequence and len(call.leading) == 1 and work < 0.8
        if not per_sequence:
            same = (low == common_low).all(0) & (high == common_high).all(0)
            low, high, full = common_low[None], common_high[None], (full.all(0) & same)[None]
    bounds = zip(low.tolist(), high.tolist(), full.tolist(), strict=True)
    return [
        QueryTile(every if len(low) == 1 else slice(b, b + 1), q, slice(min(s, e), e), f)
        for b, row in enumerate(bounds)
        for q, s, e, f in zip(steps, *row, strict=True)
    ]


def _bounds(call: Call, start: Tensor, stop: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """First key, last key + 1 and whether all pairs are allowed per step, (1 or sequences, steps)."""

    def steps(x: Tensor, fill: int) -> Tensor:  # (..., Tq) → (1 or sequences, steps, rows)
        x = x[None] if x.ndim == 1 else x.expand(*call.leading, -1).reshape(-1, x.shape[-1])
        return pad(x, (0, -call.Tq % rows), value=fill).unflatten(-1, (-1, rows))

    start, stop = torch.broadcast_tensors(start, stop)
    first, last, real = steps(start, NO_KEY), steps(stop, -1), steps(torch.ones_like(start), 0) > 0
    empty = first >= last
    low = first.masked_fill(empty, NO_KEY).amin(-1)
    high = last.masked_fill(empty, 0).amax(-1)
    full = (((first == low[..., None]) & (last == high[..., None])) | ~real).all(-1)
    return low, high, full


def _run_fused(call: Call) -> Tensor:
    """Tiles by torch's fused kernel."""
    q, k, v, scale = kernel_inputs.dot_inputs(call)
    width = max(q.shape[-1], v.shape[-1])  # torch's kernel needs equal widths; zeros change no product
    q, k, v = (readable(x) if x.shape[-1] == width else pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    call = kernel_inputs.with_dense_mask(call)
    out = _FusedTiles.apply(q, k, v, scale, call, cover(call, ROWS, per_sequence=True))
    return call.split_batch(out[..., : call.Dv])  # type: ignore[index]


def _tile_bias(call: Call, tile: QueryTile) -> tuple[Tensor | None, Tensor | None]:
    """Mask and bias of a tile as one tensor to add, and which rows see any key (None: all)."""
    if tile.full and call.bias is None:
        return None, None
    grid = tile.grid(call)
    allowed = None if tile.full or call.mask is None else call.mask.allowed(grid)
    if call.bias is None:
        assert allowed is not None
        dtype = torch.promote_types(call.dtype, torch.float32)
        added = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        added = added.masked_fill_(~allowed, -math.inf)
    else:
        query = reference.selected_inputs(call, grid).query if call.bias.uses_query else call.query
        added = call.bias.values(grid, query).detach()
        added = kernel_inputs.subtract_row_max(added, allowed) if call.bias_may_mask else added
        added = kernel_inputs.divide_bias(added, call.temperature)
        added = added if allowed is None else torch.where(allowed, added, -math.inf)
    n, m = tile.queries.stop - tile.queries.start, tile.keys.stop - tile.keys.start
    added = call.merge_pairs(added.expand(*added.shape[:-2], n, m))
    if tile.full and not call.bias_may_mask:
        return added, None
    rows = (added != -math.inf).any(-1, keepdim=True)
    return (added, None) if bool(rows.all()) else (added.masked_fill(~rows, 0.0), rows)


def _zero_other_rows(x: Tensor, rows: Tensor | None) -> Tensor:
    return x if rows is None else x.masked_fill(~rows, 0.0)


class _FusedTiles(torch.autograd.Function):
    """softmax(scale · q kᵀ + bias) v, tile by tile, forward and backward by torch's flash kernel for CPUs."""

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, scale: float, call: Call, tiles: list[QueryTile]
    ) -> Tensor:
        B, H, Tq, _ = q.shape
        out = q.new_zeros(B, Tq, H, v.shape[-1]).transpose(1, 2)
        dtype = torch.promote_types(q.dtype, torch.float32)
        lse = torch.zeros(B, Tq, H, dtype=dtype, device=q.device).transpose(1, 2)  # log Σ exp of each row
        for tile in tiles:
            b, i, j = tile.batch, tile.queries, tile.keys
            if j.start >= j.stop:
                continue
            added, rows = _tile_bias(call, tile)
            tile_out, tile_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q[b, :, i], k[b, :, j], v[b, :, j], 0.0, False, attn_mask=added, scale=scale
            )
            if j.stop - j.start < sdpa.FEW_KEYS:
                nan = q[b, :, i].isnan().any(-1) | k[b, :, j].isnan().any(-1).all(-1, keepdim=True)
                tile_out = tile_out.masked_fill(nan[..., None], math.nan)
            out[b, :, i], lse[b, :, i] = _zero_other_rows(tile_out, rows), tile_lse
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale, ctx.call, ctx.tiles, ctx.unchanged = scale, call, tiles, VersionCheck(call)
        return out

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        q, k, v, out, lse = ctx.saved_tensors
        ctx.unchanged.check()
        if torch.is_grad_enabled():
            with torch.no_grad():
                added = kernel_inputs.dense_bias(ctx.call)
            plain = lambda q, k, v: plain_attention(DotForm(q, k, ctx.scale), v, added)  # noqa: E731
            return *grad_of_plain(plain, (q, k, v), grad), None, None, None
        grad = readable(grad)
        dq, dk, dv = (torch.zeros(x.shape, dtype=lse.dtype, device=x.device) for x in (q, k, v))
        for tile in ctx.tiles:
            b, i, j = tile.batch, tile.queries, tile.keys
            if j.start >= j.stop:
                continue
            added, rows = _tile_bias(ctx.call, tile)
            tile_dq, tile_dk, tile_dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _zero_other_rows(grad[b, :, i], rows), q[b, :, i], k[b, :, j], v[b, :, j],
                out[b, :, i], lse[b, :, i], 0.0, False, attn_mask=added, scale=ctx.scale,
            )  # fmt: skip
            dq[b, :, i] = tile_dq
            dk[b, :, j] += tile_dk
            dv[b, :, j] += tile_dv
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None, None, None


def run_plain(call: Call) -> Tensor:
    """Tiles computed as the reference does."""
    key, value = call.grouped(call.key), call.grouped(call.value)
    has_functions = call.option_tensors() is None  # what they read may change before a recomputation
    recompute = not has_functions and call.requires_grad and call.pairs > MAX_SAVED_PAIRS
    unchanged = VersionCheck(call)

    def run_tile(tile: QueryTile, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        unchanged.check()
        weights, allowed = reference.weigh(call, reference.Inputs(tile.grid(call), query, key))
        return reference.combine(call, weights, allowed, value)

    outputs = []
    for tile in cover(call, plain_rows(call), per_sequence=False):
        args = (tile, call.query[..., tile.queries, :], key[..., tile.keys, :], value[..., tile.keys, :])
        outputs.append(checkpoint(run_tile, *args, use_reentrant=False) if recompute else run_tile(*args))
    shape = (*call.leading, call.heads, call.Tq, call.Dv)
    if not outputs:
        return call.query.new_zeros(shape)
    return torch.cat([out.expand(*shape[:-2], *out.shape[-2:]) for out in outputs], -2)


def tile_elements(device: torch.device) -> int:
    return TILE_ELEMENTS.get(device.type, TILE_ELEMENTS["cpu"])


def plain_rows(call: Call) -> int:
    """Number of queries in a plain tile."""
    features = call.energy.pair_features(call.query.shape[-1])
    rows = tile_elements(call.query.device) // max(1, call.sequences * call.heads * call.Tk * features)
    return max(1, min(rows if rows < 8 else rows // 8 * 8, call.Tq))
