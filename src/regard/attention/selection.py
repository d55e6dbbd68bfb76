"""The part of a recorded call that a question is about: some batch items, heads and queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.grid import Index
from regard.errors import OptionError

Pick = int | slice | Sequence[int] | Tensor | None

REFERENCE_TILE = 1 << 22  # pairs that the reference answers at a time


@dataclass
class Selection:
    """The batch items, heads and queries of one question."""

    call: Call
    batch: list[Index]
    head: Index
    query: Index
    given: tuple[Pick, Pick, Pick]  # batch, head, query as they were asked for

    @classmethod
    def of(cls, call: Call, batch: Pick, head: Pick, query: Pick) -> Selection:
        if batch is not None and len(call.leading) != 1:
            raise OptionError(
                f"batch= picks from one batch axis and this call has {len(call.leading)}; pick from the result instead"
            )
        picks = [_index("batch", batch, n) for n in call.leading]
        return cls(
            call,
            picks,
            _index("head", head, call.heads),
            _index("query", query, call.Tq),
            (batch, head, query),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        call = self.call
        leading = (_count(i, n) for i, n in zip(self.batch, call.leading, strict=True))
        return (*leading, _count(self.head, call.heads), _count(self.query, call.Tq), call.Tk)

    def rows(self) -> Tensor:
        """The numbers of the queries asked for, on the CPU."""
        if isinstance(self.query, Tensor):
            return self.query
        return torch.arange(self.call.Tq, device="cpu")[slice(None) if self.query is None else self.query]

    def steps(self) -> list[Selection]:
        """The same question for a few queries at a time, so that no more than a tile of the matrix exists."""
        *outer, _, Tk = self.shape
        rows = max(1, REFERENCE_TILE // max(1, math.prod(outer) * Tk))
        return [
            Selection(self.call, self.batch, self.head, step, self.given) for step in self.rows().split(rows)
        ]

    def squeeze(self, x: Tensor, rows: bool = True) -> Tensor:
        """x (*batch, heads, queries, ·), or without queries, less the axes of which one whole number was asked for."""
        batch, head, query = self.given
        axes = ((-4, batch), (-3, head), (-2, query)) if rows else ((-3, batch), (-2, head))
        for axis, pick in axes:  # from the left, so that those still to come keep their place
            if isinstance(pick, int):
                x = x.squeeze(axis)
        return x


def _index(name: str, pick: Pick, size: int) -> Index:
    if pick is None:
        return None
    if isinstance(pick, slice):
        return pick
    try:
        index = torch.as_tensor([pick] if isinstance(pick, int) else pick, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        index = None
    whole = index is not None and not (
        index.is_floating_point() or index.is_complex() or index.dtype == torch.bool
    )
    if index is None or isinstance(pick, bool) or index.ndim != 1 or not (whole or not index.numel()):
        raise OptionError(
            f"{name} must be a whole number, a slice or a list of whole numbers, got {pick!r:.80}"
        )
    index = index.long()
    if index.numel() and (int(index.min()) < -size or int(index.max()) >= size):
        raise OptionError(f"{name}={pick!r:.80} is out of range; there are {size}, counted from 0")
    return index % size if size else index


def _count(index: Index, size: int) -> int:
    if index is None:
        return size
    return len(range(*index.indices(size))) if isinstance(index, slice) else index.numel()


def autocast_of(call: Call) -> AbstractContextManager[object]:
    """The autocast under which the call ran: its energy may mix float32 parameters with half-precision inputs."""
    return (
        nullcontext()
        if call.autocast is None
        else torch.autocast(call.query.device.type, dtype=call.autocast)
    )
