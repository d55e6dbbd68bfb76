"""The meaning of the operator, in plain torch: any dtype, any device, any option, differentiable twice.

The order is fixed: energy → + bias → soft cap → mask → normaliser → gate → dropout → × values.
A key or value that is not finite reaches exactly the rows that may see it, and no other, in both passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.grid import Grid, take, take_some
from regard.attention.mask import Mask
from regard.errors import OptionError

STAGES = ("energy", "biased", "masked", "normalised", "gated")


def check_stage(stage: str) -> str:
    if stage not in STAGES:
        raise OptionError(f"stage must be one of {', '.join(STAGES)}, got {stage!r}")
    return stage


@dataclass
class Part:
    """The queries and keys of one call, or some of them, with the grid that names them."""

    grid: Grid
    query: Tensor
    key: Tensor
    value: Tensor | None = None


def whole(call: Call) -> Part:
    return Part(call.grid(), call.query, call.grouped(call.key), call.grouped(call.value))


def cut(call: Call, grid: Grid) -> Part:
    """Only the rows and columns that `grid` asks about, views where the indices are slices."""

    head = None if call.per_head_energy else grid.head_index
    query = take(take(call.query, -3, head), -2, grid.queries)
    key = take(take_some(call.grouped(call.key), -3, head), -2, grid.keys)
    for i, index in enumerate(reversed(grid.batch)):
        query, key = take(query, -4 - i, index), take_some(key, -4 - i, index)
    return Part(grid, query, key)


def weigh(call: Call, part: Part, stage: str = "gated") -> tuple[Tensor, Tensor | None]:
    """The matrix at one stage, (..., heads, n, m), and the pairs that are allowed (None: all)."""
    grid, query, key = part.grid, part.query, part.key
    added = None if call.bias is None else call.bias.values(grid, _rows_of(call, part))
    allowed = None if call.mask is None else call.mask.allowed(grid)
    if added is not None and call.bias_may_mask:
        open_ = added > -math.inf
        allowed = open_ if allowed is None else allowed & open_
    scores = _energies(call, query, key, clean=allowed is not None)
    if call.per_head_energy and grid.head_index is not None:
        scores = take(scores, -3, grid.head_index)
    if stage == "energy":
        return scores, allowed
    if added is not None:
        scores = scores + added
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if stage == "biased":
        return scores, allowed
    if stage == "masked":
        return (scores if allowed is None else scores.masked_fill(~allowed, -math.inf)), allowed
    weights = call.normalize(scores, allowed)
    if call.gate is not None and stage == "gated":
        gate = call.gate
        factor = gate.allowed(grid) if isinstance(gate, Mask) else gate.values(grid, query)
        weights = weights * factor.to(weights.dtype)
    return weights, allowed


def _rows_of(call: Call, part: Part) -> Tensor:
    """The query rows as a bias may read them: heads cut as the grid says."""
    return take(part.query, -3, part.grid.head_index) if call.per_head_energy else part.query


def _energies(call: Call, query: Tensor, key: Tensor, clean: bool) -> Tensor:
    if not clean:
        return call.energy(query, key)
    broken = _broken(key)
    if broken is None:
        return call.energy(query, key)
    # 0 · NaN is NaN, in the backward pass too, so a broken key leaves before the products and its column is marked after.
    scores = call.energy(query, key.masked_fill(broken[..., None], 0.0))
    return scores.masked_fill(broken[..., None, :], math.nan)


def _broken(x: Tensor) -> Tensor | None:
    """Which keys or values are not finite, (…, Tk); None when all are, which on a CPU their sum tells quickly."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and math.isfinite(float(x.detach().sum())):
        return None
    return ~x.isfinite().all(-1)


def combine(call: Call, weights: Tensor, allowed: Tensor | None, value: Tensor) -> Tensor:
    """weights × values, with dropout on the weights."""
    if call.dropout:
        weights = torch.nn.functional.dropout(weights, call.dropout)
    broken = None if allowed is None else _broken(value)
    if allowed is None or broken is None:
        return weights @ value
    out = weights @ value.masked_fill(broken[..., None], 0.0)
    reached = (allowed & broken[..., None, :]).any(-1, keepdim=True)
    return out.masked_fill(reached, math.nan)


def run(call: Call) -> Tensor:
    part = whole(call)
    weights, allowed = weigh(call, part)
    assert part.value is not None
    out = combine(call, weights, allowed, part.value)
    return out.expand(*call.leading, call.heads, call.Tq, call.Dv)
