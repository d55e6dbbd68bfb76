"""`Selection`: rows of a recorded attention matrix, by batch item, head and query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.grid import Index
from regard.errors import OptionError

IndexLike = int | slice | Sequence[int] | Tensor | None

REFERENCE_TILE = 1 << 22  # pairs that the reference computes at a time


@dataclass
class Selection:
    """Selected batch items, heads and queries of a call."""

    call: Call
    batch: list[Index]  # one per leading axis
    head: Index
    query: Index
    requested: tuple[IndexLike, IndexLike, IndexLike]  # batch, head, query as the user gave them

    @classmethod
    def of(cls, call: Call, batch: IndexLike, head: IndexLike, query: IndexLike) -> Selection:
        if batch is not None and len(call.leading) != 1:
            raise OptionError(
                f"batch= selects from one batch axis and this call has {len(call.leading)}; "
                "index the result instead"
            )
        return cls(
            call,
            [check_index("batch", batch, n) for n in call.leading],
            check_index("head", head, call.heads),
            check_index("query", query, call.Tq),
            (batch, head, query),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """(*batch, heads, queries, Tk) of the selected rows."""
        call = self.call
        leading = (_count(i, n) for i, n in zip(self.batch, call.leading, strict=True))
        return (*leading, _count(self.head, call.heads), _count(self.query, call.Tq), call.Tk)

    def query_indices(self) -> Tensor:
        """Indices of the selected queries, on the CPU."""
        if isinstance(self.query, Tensor):
            return self.query
        return torch.arange(self.call.Tq, device="cpu")[slice(None) if self.query is None else self.query]

    def chunks(self) -> list[Selection]:
        """The selection split by queries, so that a chunk has at most REFERENCE_TILE pairs."""
        *outer, _, Tk = self.shape
        rows = max(1, REFERENCE_TILE // max(1, math.prod(outer) * Tk))
        return [
            Selection(self.call, self.batch, self.head, chunk, self.requested)
            for chunk in self.query_indices().split(rows)
        ]

    def squeeze(self, x: Tensor, has_queries: bool = True) -> Tensor:
        """Drop axes that were selected by an int. x: (*batch, heads, queries, ·), or without the queries."""
        batch, head, query = self.requested
        axes = ((-4, batch), (-3, head), (-2, query)) if has_queries else ((-3, batch), (-2, head))
        for axis, index in axes:  # from the left: negative axes further right keep their meaning
            if isinstance(index, int):
                x = x.squeeze(axis)
        return x


def check_index(name: str, given: IndexLike, size: int) -> Index:
    """The index as None, a slice or a tensor of non-negative integers."""
    if given is None:
        return None
    if isinstance(given, slice):
        return given
    if type(given) is int and -size <= given < size:  # a slice selects without copying to the GPU
        return slice(given % size, given % size + 1)
    try:
        index = torch.as_tensor([given] if isinstance(given, int) else given, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        index = None
    is_integer = index is not None and not (
        index.is_floating_point() or index.is_complex() or index.dtype == torch.bool
    )
    if index is None or isinstance(given, bool) or index.ndim != 1 or not (is_integer or not index.numel()):
        raise OptionError(f"{name} must be an integer, a slice or a list of integers, got {given!r:.80}")
    index = index.long()
    if index.numel() and (int(index.min()) < -size or int(index.max()) >= size):
        raise OptionError(f"{name}={given!r:.80} is out of range; there are {size}, counted from 0")
    return index % size if size else index


def _count(index: Index, size: int) -> int:
    if index is None:
        return size
    return len(range(*index.indices(size))) if isinstance(index, slice) else index.numel()
