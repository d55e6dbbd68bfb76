"""The reference: defines the operator in plain torch, for any dtype, device and option, differentiable.

The order is fixed: energy → + bias → soft cap → mask → normaliser → gate → dropout → × values. Half-precision
inputs are computed in float32 and rounded once, at the end. A non-finite key or value affects exactly the
rows that may see it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import dropout

from regard.attention.bias import Bias
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
    """Raise unless this is one of STAGES."""
    if stage not in STAGES:
        raise OptionError(f"stage must be one of {', '.join(STAGES)}, got {stage!r}")
    return stage


@dataclass
class Inputs:
    """Queries, keys and values of a call, or a selection of them, with their indices (`grid`)."""

    grid: Grid
    query: Tensor
    key: Tensor
    value: Tensor | None = None


def all_inputs(call: Call) -> Inputs:
    """All queries, keys and values, with as many key heads as query heads."""
    return Inputs(call.grid(), call.query, call.grouped(call.key), call.grouped(call.value))


def selected_inputs(call: Call, grid: Grid) -> Inputs:
    """The queries and keys that `grid` selects; views if its indices are slices."""
    head = None if call.per_head_energy else grid.head_index
    query = take(take(call.query, -3, head), -2, grid.queries)
    key = take(take_broadcast(call.grouped(call.key), -3, head), -2, grid.keys)
    for i, index in enumerate(reversed(grid.batch)):
        query, key = take(query, -4 - i, index), take_broadcast(key, -4 - i, index)
    return Inputs(grid, query, key)


def weigh(call: Call, inputs: Inputs, stage: str = "gated") -> tuple[Tensor, Tensor | None]:
    """The matrix at one stage, (..., heads, n, m), and the pairs that are allowed (None: all)."""
    grid = inputs.grid
    # The queries for biases that read them; an energy with parameters per head gets those of all heads.
    query = take(inputs.query, -3, grid.head_index) if call.per_head_energy else inputs.query
    added = None if call.bias is None else call.bias.values(grid, query)
    allowed = None if call.mask is None else call.mask.allowed(grid)
    if added is not None and call.bias_may_mask:
        unmasked = added != -math.inf  # NaN does not mask
        allowed = unmasked if allowed is None else allowed & unmasked
    if call.edited is not None and stage == "gated":
        weights = grid.of_pairs(call.edited)
        # An edit may give weight to masked keys (`Weights`).
        return weights, None if allowed is None else allowed | (weights != 0)
    scores, may_be_nan = _energies(call, inputs.query, inputs.key, has_mask=allowed is not None)
    if call.per_head_energy and grid.head_index is not None:
        scores = take(scores, -3, grid.head_index)
    if stage == "energy":
        return scores, allowed
    if may_be_nan and allowed is not None:  # a masked NaN would reach the gradients of soft cap and bias
        scores = scores.masked_fill(~allowed, 0.0)
    if added is not None:
        is_plain_softmax = call.is_softmax and call.softcap is None
        subtract_max = is_plain_softmax and call.bias_may_mask and stage in ("normalised", "gated")
        scores = scores + (subtract_row_max(added, allowed) if subtract_max else added)
    if call.softcap is not None:
        if allowed is not None:  # nor may a masked NaN of the bias
            scores = scores.masked_fill(~allowed & scores.isnan(), 0.0)
        scores = call.softcap * (scores / call.softcap).tanh()
    if stage == "biased":
        return scores, allowed
    if stage == "masked":
        return (scores if allowed is None else scores.masked_fill(~allowed, -math.inf)), allowed
    weights = call.normalize.of_heads(grid.head_index)(scores, allowed)
    if call.gate is not None and stage == "gated":
        gate = call.gate
        factor = gate.allowed(grid) if isinstance(gate, Mask) else gate.values(grid, query)
        if allowed is not None and isinstance(gate, Bias):  # a masked NaN of the gate
            factor = torch.where(allowed, factor, 0.0)
        weights = weights * factor.to(weights.dtype)
    return weights, allowed


def _energies(call: Call, query: Tensor, key: Tensor, has_mask: bool) -> tuple[Tensor, bool]:
    """The energies, and whether some may be NaN because their key is not finite."""
    nonfinite = _nonfinite_rows(key) if has_mask else None
    if nonfinite is None:
        return upcast(call.energy(query, key)), False
    # 0 · NaN is NaN, also in the backward pass: zero such keys before the product, mark their columns after.
    scores = upcast(call.energy(query, key.masked_fill(nonfinite[..., None], 0.0)))
    return scores.masked_fill(nonfinite[..., None, :], math.nan), True


def _nonfinite_rows(x: Tensor) -> Tensor | None:
    """Which keys or values are not finite, (…, Tk); None if all are; on a CPU a finite sum shows it."""
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
        nonfinite = _nonfinite_rows(value)
        out = weights @ (value if nonfinite is None else value.masked_fill(nonfinite[..., None], 0.0))
    if nonfinite is not None:
        out = out.masked_fill((allowed & nonfinite[..., None, :]).any(-1, keepdim=True), math.nan)
    # masked_fill also keeps a NaN in the gradient of an empty row from spreading.
    return out.masked_fill(~allowed.any(-1, keepdim=True), 0.0).to(call.dtype)


def attend(call: Call) -> Tensor:
    """Compute the call: (*leading, heads, Tq, Dv)."""
    inputs = all_inputs(call)
    weights, allowed = weigh(call, inputs)
    assert inputs.value is not None
    out = combine(call, weights, allowed, inputs.value)
    return out.expand(*call.leading, call.heads, call.Tq, call.Dv)


class Reference(Kernel):
    name = "reference"

    def refuses(self, call: Call, machine: Machine) -> str | None:
        return None

    def describe(self, call: Call, machine: Machine) -> str:
        return "the plain definition is fastest here, or the only kernel that can run"

    def memory(self, call: Call, machine: Machine) -> int:
        hidden = call.energy.pair_features(call.query.shape[-1])
        copies = 2 + (call.mask is not None) + (call.bias is not None) + (call.softcap is not None)
        size = compute_dtype(call.dtype).itemsize
        return int(call.pairs * size * (copies if hidden == 1 else hidden * 2))

    def run(self, call: Call, machine: Machine) -> Tensor:
        return attend(call)
