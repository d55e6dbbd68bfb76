"""The meaning of the operator, in plain torch: any dtype, any device, any option, differentiable to any order.

The order is fixed: energy → + bias → soft cap → mask → normaliser → gate → dropout → × values. Half-precision inputs are
computed in float32 and rounded once, at the end. A key or value that is not finite reaches exactly the rows that may see it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import dropout

from regard.attention.call import Call
from regard.attention.grid import Grid, take, take_broadcast
from regard.attention.kernel_inputs import subtract_row_max
from regard.attention.kernels.kernel import Kernel
from regard.attention.machine import Machine
from regard.attention.mask import Mask
from regard.attention.precision import compute_dtype, no_autocast, upcast
from regard.attention.tracing import can_read_values
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


def all_of(call: Call) -> Part:
    return Part(call.grid(), call.query, call.grouped(call.key), call.grouped(call.value))


def cut(call: Call, grid: Grid) -> Part:
    """Only the rows and columns that `grid` asks about, views where the indices are slices."""
    head = None if call.per_head_energy else grid.head_index
    query = take(take(call.query, -3, head), -2, grid.queries)
    key = take(take_broadcast(call.grouped(call.key), -3, head), -2, grid.keys)
    for i, index in enumerate(reversed(grid.batch)):
        query, key = take(query, -4 - i, index), take_broadcast(key, -4 - i, index)
    return Part(grid, query, key)


def weigh(call: Call, part: Part, stage: str = "gated") -> tuple[Tensor, Tensor | None]:
    """The matrix at one stage, (..., heads, n, m), and the pairs that are allowed (None: all)."""
    grid = part.grid
    rows = (
        take(part.query, -3, grid.head_index) if call.per_head_energy else part.query
    )  # as a bias may read them
    added = None if call.bias is None else call.bias.values(grid, rows)
    allowed = None if call.mask is None else call.mask.allowed(grid)
    if added is not None and call.bias_may_mask:
        open_ = added != -math.inf  # NaN does not mask
        allowed = open_ if allowed is None else allowed & open_
    scores, broken = _energies(call, part.query, part.key, hides=allowed is not None)
    if call.per_head_energy and grid.head_index is not None:
        scores = take(scores, -3, grid.head_index)
    if stage == "energy":
        return scores, allowed
    if broken and allowed is not None:  # a masked NaN would make NaN of what soft cap and bias learn
        scores = scores.masked_fill(~allowed, 0.0)
    if added is not None:
        level = (
            call.is_softmax
            and call.softcap is None
            and call.bias_may_mask
            and stage in ("normalised", "gated")
        )
        scores = scores + (subtract_row_max(added) if level else added)
    if call.softcap is not None:
        scores = call.softcap * (scores / call.softcap).tanh()
    if stage == "biased":
        return scores, allowed
    if stage == "masked":
        return (scores if allowed is None else scores.masked_fill(~allowed, -math.inf)), allowed
    weights = call.normalize.of_heads(grid.head_index)(scores, allowed)
    if call.gate is not None and stage == "gated":
        gate = call.gate
        factor = gate.allowed(grid) if isinstance(gate, Mask) else gate.values(grid, rows)
        weights = weights * factor.to(weights.dtype)
    return weights, allowed


def _energies(call: Call, query: Tensor, key: Tensor, hides: bool) -> tuple[Tensor, bool]:
    """The energies, and whether a key among them may be broken."""
    broken = _broken(key) if hides else None
    if broken is None:
        return upcast(call.energy(query, key)), False
    # 0 · NaN is NaN, in the backward pass too, so a broken key leaves before the products and its column is marked after.
    scores = upcast(call.energy(query, key.masked_fill(broken[..., None], 0.0)))
    return scores.masked_fill(broken[..., None, :], math.nan), True


def _broken(x: Tensor) -> Tensor | None:
    """Which keys or values are not finite, (…, Tk); None when all are, which on a CPU their sum tells quickly."""
    if can_read_values(x) and math.isfinite(x.detach().sum().item()):
        return None
    return ~x.isfinite().all(-1)


def combine(call: Call, weights: Tensor, allowed: Tensor | None, value: Tensor) -> Tensor:
    """weights × values, with dropout on the weights."""
    weights = dropout(weights, call.dropout) if call.dropout else weights
    value = value.to(weights.dtype)
    with no_autocast(value):
        if allowed is None:
            return (weights @ value).to(call.dtype)
        broken = _broken(value)
        out = weights @ (value if broken is None else value.masked_fill(broken[..., None], 0.0))
    if broken is not None:
        out = out.masked_fill((allowed & broken[..., None, :]).any(-1, keepdim=True), math.nan)
    return out.masked_fill(~allowed.any(-1, keepdim=True), 0.0).to(
        call.dtype
    )  # a NaN in its gradient stays there


def attend(call: Call) -> Tensor:
    part = all_of(call)
    weights, allowed = weigh(call, part)
    assert part.value is not None
    out = combine(call, weights, allowed, part.value)
    return out.expand(*call.leading, call.heads, call.Tq, call.Dv)


class Reference(Kernel):
    name = "reference"

    def refuses(self, call: Call, machine: Machine) -> str | None:
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        return "the plain definition is best or all that can run here"

    def memory(self, call: Call, machine: Machine) -> int:
        hidden = call.energy.pair_features(call.query.shape[-1])
        copies = 2 + (call.mask is not None) + (call.bias is not None) + (call.softcap is not None)
        size = compute_dtype(call.dtype).itemsize
        return int(call.pairs * size * (copies if hidden == 1 else hidden * 2))

    def run(self, call: Call, machine: Machine) -> Tensor:
        return attend(call)
