"""torch's FlexAttention: one compiled kernel for any mask and bias of positions.

It needs torch.compile (a C++ compiler on a CPU, Triton on a GPU), so it is never the only way. On a CPU it has no backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.grid import Point
from regard.attention.machine import Machine
from regard.attention.mask import FULL, PARTIAL, Mask
from regard.attention.normalize import Softmax

BLOCK = 128
KINDS = 1024  # of calls (mask, bias, shape, type) that one process may compile; torch gives up after 8


def why_not(call: Call, machine: Machine) -> str | None:
    if machine.kind not in ("cpu", "cuda"):
        return f"Flex runs on CPUs and CUDA, not on {machine.kind}"
    if machine.compiling:
        return "the call is being compiled already"
    if machine.recording:
        return "a CUDA graph is being recorded, and Flex asks the CPU about the mask"
    if not isinstance(call.normalize, Softmax):
        return f"Flex normalises by softmax only, not by {type(call.normalize).__name__}"
    if call.gate is not None or call.dropout:
        return "Flex has no gate and no dropout"
    if len(call.leading) > 1:
        return "Flex takes one batch axis"
    if call.dtype == torch.float64:
        return "Flex does not compute in float64"
    if call.dot is None:
        return f"{type(call.energy).__name__} is not a dot product here"
    if call.bias is not None and (call.bias.uses_query or call.bias_learns):
        return "the bias learns or depends on the query"
    if machine.kind == "cpu" and call.learns:
        return "on a CPU Flex has no backward pass"
    if not (call.Tq and call.Tk and call.sequences):
        return "there is nothing to compute"
    if machine.kind == "cuda" and call.dot.query.shape[-1] < 16:
        return "on a GPU Flex needs vectors of at least 16 components"
    return None


@lru_cache(maxsize=1)
def _compiled():  # noqa: ANN202
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def run(call: Call, machine: Machine) -> Tensor:
    assert call.dot is not None and isinstance(call.normalize, Softmax)
    query, key, scale = call.dot
    q, k, v = call.four(query), call.four(call.as_many_heads(key)), call.four(call.as_many_heads(call.value))
    Tq, Tk, bias, temperature, cap = call.Tq, call.Tk, call.bias, call.normalize.temperature, call.softcap

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if bias is not None:
            s = s + bias.values(Point(b, h, i, j, Tq, Tk), s)
        return (s if cap is None else cap * torch.tanh(s / cap)) / temperature

    plain = bias is None and cap is None
    cover = Cover() if call.mask is None else _cover(call.mask, Tq, Tk, q.device)
    if cover.keys is not None:
        k, v = k.masked_fill(~cover.keys, 0.0), v.masked_fill(~cover.keys, 0.0)
    with torch._dynamo.config.patch(recompile_limit=KINDS, accumulated_recompile_limit=KINDS):
        out = _compiled()(
            q, k.contiguous(), v.contiguous(), score_mod=None if plain else score, block_mask=cover.blocks,
            scale=scale / temperature if plain else scale,
        )  # fmt: skip
    return call.back(out if cover.rows is None else out.masked_fill(~cover.rows, 0.0))


@dataclass(frozen=True)
class Cover:
    """A mask as Flex reads it, the rows that see anything, (…, Tq, 1), and the keys that are seen, (…, Tk, 1); None: all."""

    blocks: Any = None
    rows: Tensor | None = None
    keys: Tensor | None = None


_covers: dict[tuple[str, int, int, str], Cover] = {}


def _cover(mask: Mask, Tq: int, Tk: int, device: torch.device) -> Cover:
    """Made once for masks that hold no tensors, which their text names completely."""
    if has_tensors(mask):
        return _make_cover(mask, Tq, Tk, device)
    key = (repr(mask), Tq, Tk, str(device))
    if key not in _covers:
        if len(_covers) >= 64:
            _covers.clear()
        _covers[key] = _make_cover(mask, Tq, Tk, device)
    return _covers[key]


def _make_cover(mask: Mask, Tq: int, Tk: int, device: torch.device) -> Cover:
    from torch.nn.attention.flex_attention import BlockMask

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return mask.allowed(Point(b, h, i, j, Tq, Tk))

    kinds = mask.blocks(Tq, Tk, BLOCK, device)
    kinds = kinds.reshape((1,) * (4 - kinds.ndim) + tuple(kinds.shape))
    lists = [x for kind in (PARTIAL, FULL) for x in _listed(kinds == kind)]
    blocks = BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(Tq, Tk))
    rows, keys = seen_rows_and_keys(mask, Tq, Tk, device)
    return Cover(blocks, None if bool(rows.all()) else rows[..., None], None if bool(keys.all()) else keys[..., None])


def _listed(wanted: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of blocks how many are wanted, and their numbers first."""
    order = wanted.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return wanted.sum(-1, dtype=torch.int32), order.to(torch.int32)


def has_tensors(mask: Mask) -> bool:
    """Whether a mask, or one it is joined of, holds a tensor (or is of a kind unknown here)."""
    if not is_dataclass(mask):
        return True
    held = [getattr(mask, f.name) for f in fields(mask)]
    return any(isinstance(x, Tensor) or (isinstance(x, Mask) and has_tensors(x)) for x in held)


def seen_rows_and_keys(mask: Mask, Tq: int, Tk: int, device: torch.device | str | None) -> tuple[Tensor, Tensor]:
    """Which queries see any key, (…, 1, Tq), and which keys any query sees, (…, 1, Tk); no T×T where the mask is runs."""
    runs = mask.runs(Tq, Tk, device)
    if runs is None:
        dense = mask.dense(Tq, Tk, device)
        return dense.any(-1), dense.any(-2)
    start, stop = torch.broadcast_tensors(*runs)
    some = start < stop
    edges = torch.zeros(*start.shape[:-1], Tk + 1, dtype=torch.long, device=start.device)
    edges.scatter_add_(-1, start.clamp(0, Tk), some.long())
    edges.scatter_add_(-1, stop.clamp(0, Tk), -some.long())
    return some.unsqueeze(-2), (edges.cumsum(-1)[..., :Tk] > 0).unsqueeze(-2)
