"""Prepare the inputs of kernels.

`clear_unseen` zeros keys that no query sees and queries that see no key, so that NaN there cannot spread.
`dot_inputs`, `distance_inputs` and `additive_inputs` return queries, keys and values with one batch axis.
`readable` returns memory that a kernel can read by address. `VersionCheck` detects a mask or bias that was
modified between the forward and the backward pass.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.energy import PLAIN_DOTS
from regard.attention.mask import Dense, Mask
from regard.attention.tracing import can_read_values
from regard.errors import KernelError

MIN_SCALE = 1e-37  # of the scales that kernels get: positive also in float32


def needs_clearing(call: Call) -> bool:
    """True if there may be a key that no query sees or a query that sees no key; reads no tensor values."""
    return call.bias_may_mask or (call.mask is not None and not call.mask.covers(call.Tq, call.Tk))


def clear_unseen(call: Call) -> Call:
    """Zero queries that see no key, and keys and values that no query sees; so their gradients are 0 too."""
    if call.is_empty or (
        can_read_values(call.query) and all(is_finite(x) for x in (call.query, call.key, call.value))
    ):
        return call
    rows, keys = _seen(call)
    keys = _to_key_heads(call, keys)
    hidden = ~_reduce_any(rows, call.query.shape[:-1])[..., None]
    key, value = (
        x.masked_fill(~_reduce_any(keys, x.shape[:-1])[..., None], 0.0) for x in (call.key, call.value)
    )
    return replace(call, query=call.query.masked_fill(hidden, 0.0), key=key, value=value)


def is_finite(x: Tensor) -> bool:
    """Whether all elements are finite: a finite sum implies it, and costs less than an elementwise check."""
    return math.isfinite(x.detach().sum().item())


def allowed_pairs(call: Call) -> Tensor | None:
    """The pairs that mask and bias allow, broadcasting to (*leading, heads, Tq, Tk); None: all."""
    grid = call.grid()
    allowed = None if call.mask is None else call.mask.allowed(grid)
    if call.bias is not None and call.bias_may_mask:
        allowed_by_bias = call.bias.values(grid, call.query).detach() != -math.inf
        allowed = allowed_by_bias if allowed is None else allowed & allowed_by_bias
    return allowed


def _seen(call: Call) -> tuple[Tensor, Tensor]:
    """Queries that see any key, (…, heads or 1, Tq), and keys that any query sees, (…, heads or 1, Tk)."""
    if call.mask is not None and not call.bias_may_mask and can_read_values(call.query):
        return rows_and_keys_seen(call.mask, call.Tq, call.Tk, call.query.device)
    allowed = allowed_pairs(call)
    assert allowed is not None
    allowed = allowed.expand(*allowed.shape[:-2], call.Tq, call.Tk)
    return allowed.any(-1), allowed.any(-2)


def rows_and_keys_seen(
    mask: Mask, Tq: int, Tk: int, device: torch.device | str | None
) -> tuple[Tensor, Tensor]:
    """Which queries see any key, (…, 1, Tq), and which keys any query sees, (…, 1, Tk).

    Builds no T×T matrix if the mask has key ranges.
    """
    ranges = mask.key_ranges(Tq, Tk, device)
    if ranges is None:
        dense = mask.dense(Tq, Tk, device)
        return dense.any(-1), dense.any(-2)
    start, stop = torch.broadcast_tensors(*ranges)
    nonempty = start < stop
    # +1 where a range starts and −1 where one ends: the running sum is the number of ranges over a key.
    edges = torch.zeros(*start.shape[:-1], Tk + 1, dtype=torch.long, device=start.device)
    edges.scatter_add_(-1, start.clamp(0, Tk), nonempty.long())
    edges.scatter_add_(-1, stop.clamp(0, Tk), -nonempty.long())
    return nonempty.unsqueeze(-2), (edges.cumsum(-1)[..., :Tk] > 0).unsqueeze(-2)


def _to_key_heads(call: Call, seen: Tensor) -> Tensor:
    """Which keys any query head of a group sees: (…, heads, Tk) → (…, key heads, Tk)."""
    if call.groups == 1 or seen.ndim < 2 or seen.shape[-2] == 1:
        return seen
    return seen.unflatten(-2, (-1, call.groups)).any(-2)


def _reduce_any(x: Tensor, shape: torch.Size) -> Tensor:
    """Reduce x by `any` over the axes that `shape` lacks or has with size 1."""
    while x.ndim > len(shape):
        x = x.any(0)
    for axis in range(1, x.ndim + 1):
        if shape[-axis] == 1 and x.shape[-axis] != 1:
            x = x.any(-axis, keepdim=True)
    return x


def dot_inputs(call: Call, *, grouped: bool = False) -> tuple[Tensor, Tensor, Tensor, float]:
    """Queries, keys, values (batch, heads, T, ·) and scale/temperature of a dot-product energy.

    The scale is positive, also for `Dot(-1)`: fused kernels scale masked energies of −∞ and row maxima.
    With `grouped`, keys and values keep fewer heads, unless the energy has parameters per head.
    """
    key = call.grouped(call.key) if call.per_head_energy else call.key
    query, key, scale = call.energy.as_dot(call.query, key)
    scale = scale / call.temperature
    if scale < 0:
        query, scale = -query, -scale
    if scale < MIN_SCALE:
        query, scale = query * scale, 1.0
    if query.dtype != call.dtype or key.dtype != call.dtype:  # autocast
        query, key = query.to(call.dtype), key.to(call.dtype)
    key, value = _match_heads(call, key, call.value, grouped)
    return call.merge_batch(query), call.merge_batch(key), call.merge_batch(value), scale


def plain_scale(call: Call) -> float | None:
    """The scale/temperature of a dot product whose queries `dot_inputs` returns as they are, else None."""
    if type(call.energy) not in PLAIN_DOTS:
        return None
    scale = call.energy.as_dot(call.query, call.key).scale / call.temperature
    return scale if scale >= MIN_SCALE else None


def distance_inputs(call: Call) -> tuple[Tensor, Tensor, Tensor, float]:
    """Queries, keys, values (batch, heads, T, ·) and 1/temperature, for kernels of squared distances."""
    key, value = _match_heads(call, call.key, call.value, grouped=True)
    return call.merge_batch(call.query), call.merge_batch(key), call.merge_batch(value), 1 / call.temperature


def additive_inputs(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Projected queries and keys, v (heads, hidden) and values of an additive energy, with one batch axis."""
    a, b, v = call.energy.as_additive(call.query, call.key)
    a, b, v = (x.to(call.dtype) for x in (a, b, v))
    b, value = _match_heads(call, b, call.value, grouped=True)
    return (
        call.merge_batch(a),
        call.merge_batch(b),
        v.expand(call.heads, v.shape[-1]),
        call.merge_batch(value),
    )


def _match_heads(call: Call, key: Tensor, value: Tensor, grouped: bool) -> tuple[Tensor, Tensor]:
    """Keys and values with the same number of heads: that of the queries, or with `grouped` a smaller one."""
    if key.shape[-3] == value.shape[-3] and (grouped or key.shape[-3] == call.heads):
        return key, value
    return call.with_all_heads(key), call.with_all_heads(value)


def dense_bias(call: Call) -> Tensor | None:
    """Mask and bias as one additive tensor, (batch or 1, heads or 1, Tq, Tk), divided by the temperature."""
    allowed = None if call.mask is None else call.mask.allowed(call.grid())
    bias = None if call.bias is None else call.bias.values(call.grid(), call.query)
    if bias is None and allowed is None:
        return None
    if bias is None:
        assert allowed is not None
        bias = torch.zeros(allowed.shape, dtype=torch.float32, device=allowed.device)
    else:
        bias = subtract_row_max(bias, allowed) if call.bias_may_mask and call.softcap is None else bias
        bias = divide_bias(bias, call.temperature)
    if allowed is not None:
        bias = torch.where(allowed, bias, -math.inf)
    return call.merge_pairs(bias.expand(*bias.shape[:-2], call.Tq, call.Tk))


def subtract_row_max(bias: Tensor, allowed: Tensor | None) -> Tensor:
    """The bias minus the maximum that each row has at allowed keys, which does not change a softmax.

    Energies lose their digits beside a bias of −1e9; a fused backward pass, which recomputes weights from
    energy − log Σ exp, would have no correct one.
    """
    if bias.shape[-1] == 0:
        return bias
    seen = bias.detach() if allowed is None else torch.where(allowed, bias.detach(), -math.inf)
    top = seen.amax(-1, keepdim=True)
    return bias - torch.where(top.isfinite(), top, 0.0)


def divide_bias(bias: Tensor, temperature: float) -> Tensor:
    """The bias divided by the temperature; finite values stay finite, as only −∞ masks."""
    if temperature >= 1.0:
        return bias if temperature == 1.0 else bias / temperature
    limit = 0.999 * torch.finfo(bias.dtype).max * temperature
    return torch.where(bias.isfinite(), bias.clamp(-limit, limit), bias) / temperature


def dense_shape(call: Call, with_mask: bool = True) -> list[int]:
    """The shape of mask and bias as one dense tensor, (..., Tq or 1, Tk or 1), from a 2 × 2 corner."""
    corner = call.grid(slice(0, 2), slice(0, 2))
    parts = [call.mask.allowed(corner)] if with_mask and call.mask is not None else []
    if call.bias is not None:
        parts.append(call.bias.values(corner, call.query[..., :2, :]))
    *batch_and_heads, rows, columns = torch.broadcast_shapes(*(part.shape for part in parts))
    return [*batch_and_heads, 1 if rows == 1 else call.Tq, 1 if columns == 1 else call.Tk]


def readable(x: Tensor) -> Tensor:
    """Return x, copied if its last axis is not contiguous, its rows overlap or its negation is lazy."""
    x = separate_rows(x.resolve_neg())
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def separate_rows(x: Tensor) -> Tensor:
    """Return x, copied if its rows overlap in memory, as in a view by `unfold`.

    torch's fused kernel for CPUs reads overlapping queries beyond their end.
    """
    return x.contiguous() if x.shape[-2] > 1 and x.stride(-2) < x.shape[-1] else x


def with_dense_mask(call: Call) -> Call:
    """Replace a user-defined mask by a dense copy: its tensors may change before the backward pass."""
    if call.mask is None or call.mask.tensors() is not None:
        return call
    return replace(call, mask=Dense(call.mask.allowed(call.grid()).clone()))


class VersionCheck:
    """Detects in-place changes of the options' tensors, which some kernels read again in backward."""

    def __init__(self, call: Call) -> None:
        self.tensors = [x for x in call.option_tensors() or () if not x.is_inference()]
        self.versions = [x._version for x in self.tensors]

    def check(self) -> None:
        """Raise a KernelError if a tensor was modified in place."""
        for x, version in zip(self.tensors, self.versions, strict=True):
            if x._version != version:
                raise KernelError(
                    f"a tensor of shape {tuple(x.shape)} that attend's mask, bias or energy reads was "
                    "changed in place before the backward pass; change a copy (x.clone()) instead"
                )
