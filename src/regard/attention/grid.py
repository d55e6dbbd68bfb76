"""Index grids: the (query, key) pairs for which a mask or bias is evaluated.

A mask or bias is a rule over positions. A `Grid` gives it index tensors that broadcast to (..., heads,
queries, keys), for the full matrix or any part of it. A rule is then written once and serves the reference,
one tile of a kernel, one row of a recorded call and, as a `SinglePair`, FlexAttention.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Index = slice | Tensor | None  # None: all


def _indices(index: Index, size: int, device: torch.device | str | None) -> Tensor:
    if index is None:
        return torch.arange(size, device=device)
    if isinstance(index, slice):
        return torch.arange(*index.indices(size), device=device)
    return index.to(device)


def take(x: Tensor, dim: int, index: Index) -> Tensor:
    """Select along `dim`; a view if the index is a slice."""
    if index is None:
        return x
    if isinstance(index, slice):
        start, stop, step = index.indices(x.shape[dim])
        if step == 1:
            return x.narrow(dim, start, max(0, stop - start))
    return x.index_select(dim, _indices(index, x.shape[dim], x.device))


def take_broadcast(x: Tensor, dim: int, index: Index) -> Tensor:
    """Select along `dim`, unless that axis broadcasts (is missing or of size 1)."""
    return x if x.ndim < -dim or x.shape[dim] == 1 else take(x, dim, index)


class Grid:
    """The (query, key) pairs of one attention call, or a part of them."""

    def __init__(
        self,
        Tq: int,
        Tk: int,
        *,
        heads: int = 1,
        leading: Sequence[int] = (),
        queries: Index = None,
        keys: Index = None,
        head: Index = None,
        batch: Sequence[Index] | None = None,
        device: torch.device | str | None = None,
        start: int | Tensor | None = None,
    ) -> None:
        self.Tq, self.Tk, self.heads, self.leading, self.device = Tq, Tk, heads, tuple(leading), device
        self.start = start  # position of query 0 for rules without an offset; None: last query at last key
        self.queries, self.keys, self.head_index = queries, keys, head
        self.batch = tuple(batch) if batch is not None else (None,) * len(self.leading)

    @property
    def is_contiguous(self) -> bool:
        """Whether the queries and the keys are each a contiguous range."""
        return all(
            i is None or (isinstance(i, slice) and i.step in (None, 1)) for i in (self.queries, self.keys)
        )

    @property
    def q(self) -> Tensor:
        """Query indices, (n, 1)."""
        return _indices(self.queries, self.Tq, self.device)[:, None]

    @property
    def k(self) -> Tensor:
        """Key indices, (1, m)."""
        return _indices(self.keys, self.Tk, self.device)[None, :]

    @property
    def head(self) -> Tensor:
        """Head indices, (h, 1, 1)."""
        return _indices(self.head_index, self.heads, self.device)[:, None, None]

    def position(self, offset: int | Tensor | None = None) -> Tensor:
        """Position of each query among the keys, (n, 1) or (*leading, 1, n, 1).

        `offset` is the position of query 0; without one, the last query is at the last key.
        """
        offset = self.start if offset is None else offset
        if offset is None:
            return self.q + (self.Tk - self.Tq)
        return self.q + (offset if isinstance(offset, int) else self.per_sequence(offset))

    def at(self, start: int | Tensor) -> Grid:
        """The same pairs with query 0 at position `start`, one number or one per sequence."""
        return Grid(
            self.Tq, self.Tk, heads=self.heads, leading=self.leading, queries=self.queries, keys=self.keys,
            head=self.head_index, batch=self.batch, device=self.device, start=start,
        )  # fmt: skip

    def per_sequence(self, x: Tensor) -> Tensor:
        """One number per sequence, (*leading), as (*leading, 1, 1, 1)."""
        return self._take_batch(x, 0)[..., None, None, None] if x.ndim else x

    def of_queries(self, x: Tensor) -> Tensor:
        """One number per query, (*leading, Tq), as (*leading, 1, n, 1)."""
        x = take_broadcast(self._take_batch(x, 1), -1, self.queries)
        return x[..., None, :, None] if x.ndim > 1 else x[:, None]

    def of_keys(self, x: Tensor) -> Tensor:
        """One number per key, (*leading, Tk), as (*leading, 1, 1, m)."""
        x = take_broadcast(self._take_batch(x, 1), -1, self.keys)
        return x[..., None, None, :] if x.ndim > 1 else x[None, :]

    def of_pairs(self, x: Tensor) -> Tensor:
        """(*leading, heads, Tq, Tk), axes may be 1 or missing, sliced to the pairs of this grid."""
        x = take_broadcast(take_broadcast(x, -1, self.keys), -2, self.queries)
        return take_broadcast(self._take_batch(x, 3), -3, self.head_index)

    def of_heads(self, x: Tensor) -> Tensor:
        """(heads, n, m) with the queries and keys of this grid, sliced to its heads."""
        return take_broadcast(x, -3, self.head_index)

    def _take_batch(self, x: Tensor, inner: int) -> Tensor:
        """Select along the leading axes, which come before the last `inner` axes."""
        for i, index in enumerate(reversed(self.batch)):
            x = take_broadcast(x, -(inner + 1 + i), index)
        return x


class SinglePair(Grid):
    """One pair as FlexAttention passes it to score_mod and mask_mod: all indices are scalar tensors.

    The batch index counts all leading axes as one.
    """

    def __init__(
        self,
        b: Tensor,
        h: Tensor,
        q: Tensor,
        k: Tensor,
        Tq: int,
        Tk: int,
        leading: Sequence[int] = (1,),
        start: int | Tensor | None = None,
    ) -> None:
        self.Tq, self.Tk, self.leading, self.start = Tq, Tk, tuple(leading), start
        self.b, self.h, self.at_q, self.at_k = b, h, q, k

    q = property(lambda self: self.at_q)  # type: ignore[assignment]
    k = property(lambda self: self.at_k)  # type: ignore[assignment]
    head = property(lambda self: self.h)  # type: ignore[assignment]

    def at(self, start: int | Tensor) -> SinglePair:
        return SinglePair(self.b, self.h, self.at_q, self.at_k, self.Tq, self.Tk, self.leading, start)

    def per_sequence(self, x: Tensor) -> Tensor:
        return self._at(x)

    def of_queries(self, x: Tensor) -> Tensor:
        return self._at(x, self.at_q)

    def of_keys(self, x: Tensor) -> Tensor:
        return self._at(x, self.at_k)

    def of_pairs(self, x: Tensor) -> Tensor:
        x = x.reshape((1,) * (3 - x.ndim) + tuple(x.shape))
        return self._at(x, self.h, self.at_q, self.at_k)

    def of_heads(self, x: Tensor) -> Tensor:
        return x[self.h if x.shape[0] > 1 else self.h * 0]

    def _at(self, x: Tensor, *inner: Tensor) -> Tensor:
        """The element of x, (*leading, *inner), for this pair; axes of size 1 broadcast."""
        index, rest = list(inner), self.b
        leading = self.leading[len(self.leading) - (x.ndim - len(inner)) :] if x.ndim > len(inner) else ()
        for size in reversed(leading):
            index.insert(0, rest % size)
            rest = torch.div(rest, size, rounding_mode="floor")
        return x[tuple(i if n > 1 else i * 0 for i, n in zip(index, x.shape, strict=True))] if index else x


class BlockGrid:
    """The first and last index of each block of queries and keys, for rules that are evaluated per block."""

    def __init__(self, Tq: int, Tk: int, size: tuple[int, int], device: torch.device | str | None) -> None:
        self.Tq, self.Tk, self.size = Tq, Tk, size  # size: (queries, keys) of a block
        q = torch.arange(0, Tq, size[0], device=device)[:, None]
        k = torch.arange(0, Tk, size[1], device=device)[None, :]
        self.q = (q, (q + size[0]).clamp(max=Tq) - 1)  # (first, last), each (blocks, 1)
        self.k = (k, (k + size[1]).clamp(max=Tk) - 1)  # (first, last), each (1, blocks)

    def distance(self, offset: int | Tensor | None) -> tuple[Tensor, Tensor]:
        """The smallest and largest key − position of the query in each block; all integers between occur."""
        if offset is None:
            shift: int | Tensor = self.Tk - self.Tq
        else:
            shift = offset if isinstance(offset, int) else self.per_sequence(offset)
        return self.k[0] - (self.q[1] + shift), self.k[1] - (self.q[0] + shift)

    def per_sequence(self, x: Tensor) -> Tensor:
        return x[..., None, None, None] if x.ndim else x

    def range_of(self, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """The minimum and maximum of x, (*leading, T), in each block of queries (axis 0) or keys (axis 1)."""
        size = self.size[axis]
        n = (x.shape[-1] + size - 1) // size
        padding = x[..., -1:].expand(*x.shape[:-1], n * size - x.shape[-1])
        blocks = torch.cat([x, padding], -1).unflatten(-1, (n, size))
        add_axes = (lambda y: y[..., None, :, None]) if axis == 0 else (lambda y: y[..., None, None, :])
        low, high = add_axes(blocks.amin(-1)), add_axes(blocks.amax(-1))
        return (low, high) if x.ndim > 1 else (low[0], high[0])
