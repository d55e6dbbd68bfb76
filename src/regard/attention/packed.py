"""Packed sequences: several in one row of tokens, without padding, each attending to itself alone.

Boundaries are cumulative lengths, [0, n1, n1 + n2, …], the `cu_seqlens` of flash-attn's varlen functions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from regard.attention.bias import Bias, DenseBias
from regard.attention.devices import check_device
from regard.attention.grid import BlockGrid, Grid, SinglePair
from regard.attention.mask import And, Dense, Mask, Not, Or, Ranges, tensor_signature
from regard.attention.position_masks import Causal, Dilated, Documents, _Band, _FirstKeys
from regard.errors import DtypeError, OptionError, ShapeError

Boundaries = Tensor | Sequence[int]


@dataclass(frozen=True, eq=False)
class Packed(Mask):
    """Sequences one after the other on the time axis: a query sees the keys of its own sequence, and there what `mask` allows.

    >>> cu_seqlens = torch.tensor([0, 3, 5], dtype=torch.int32)   # a sequence of 3 tokens and one of 2
    >>> q = k = v = torch.randn(8, 5, 64)                         # (heads, total, dim)
    >>> out = attend(q, k, v, mask=Packed(cu_seqlens, mask=Causal()))

    `mask` is counted within each sequence, as if it were alone: Causal() lines up its last query with its last key, also when
    `cu_seqlens_k` gives the keys other lengths (flash-attn's convention). Numbers per sequence in it, such as
    Prefix(lengths), are per packed sequence. Boundaries are read once, here: make the mask outside of a compiled function.
    """

    cu_seqlens: Boundaries
    cu_seqlens_k: Boundaries | None = None
    mask: Mask | None = None
    ids: Tensor = field(init=False, repr=False)  # the sequence of each query, (Tq,)
    key_ids: Tensor = field(init=False, repr=False)  # the sequence of each key, (Tk,)
    index: Tensor = field(init=False, repr=False)  # each query's number within its sequence, (Tq,)
    key_index: Tensor = field(init=False, repr=False)  # each key's number within its sequence, (Tk,)

    def __post_init__(self) -> None:
        queries, numbers = _boundaries("cu_seqlens", self.cu_seqlens)
        keys, key_numbers = (
            (None, numbers) if self.cu_seqlens_k is None else _boundaries("cu_seqlens_k", self.cu_seqlens_k)
        )
        if key_numbers == numbers:
            keys = None
        if len(key_numbers) != len(numbers):
            raise ShapeError(
                f"cu_seqlens has {len(numbers) - 1} sequences and cu_seqlens_k {len(key_numbers) - 1}; give both the same number"
            )
        if self.mask is not None and not isinstance(self.mask, Mask):
            raise OptionError(
                f"Packed's mask is a Mask such as Causal() or None, got {type(self.mask).__name__}; {_JOIN}"
            )
        for part in parts(self.mask):
            if isinstance(part, Dense | Documents | Packed):
                raise OptionError(
                    f"Packed's mask is counted within each sequence, and {type(part).__name__} within the row; {_JOIN}"
                )
        ids, index = _numbered(queries, numbers[-1])
        key_ids, key_index = (ids, index) if keys is None else _numbered(keys, key_numbers[-1])
        made = dict(
            cu_seqlens=queries, cu_seqlens_k=keys, ids=ids, key_ids=key_ids, index=index, key_index=key_index
        )
        for name, x in made.items():
            object.__setattr__(self, name, x)

    @classmethod
    def of_lengths(
        cls, lengths: Sequence[int], key_lengths: Sequence[int] | None = None, *, mask: Mask | None = None
    ) -> Packed:
        """Sequences of these lengths, one after the other."""
        return cls(_summed(lengths), None if key_lengths is None else _summed(key_lengths), mask)

    @property
    def sequences(self) -> int:
        return len(self.cu_seqlens) - 1

    def allowed(self, grid: Grid) -> Tensor:
        same = grid.of_queries(self.ids) == grid.of_keys(self.key_ids)
        return same if self.mask is None else same & self.mask.allowed(_Within(grid, self))

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        rows = _Rows(self)
        found = (torch.zeros_like(rows.keys), rows.keys) if self.mask is None else _ranges(self.mask, rows)
        return None if found is None else (found[0] + rows.first, found[1] + rows.first)

    def block_bounds(self, corners: BlockGrid) -> tuple[Tensor, Tensor]:
        ranges = self.key_ranges(corners.Tq, corners.Tk)
        if ranges is None:  # all that is known is whose keys they are
            (a, b), (c, d) = corners.range_of(self.ids, 0), corners.range_of(self.key_ids, 1)
            some = (a <= d) & (c <= b)
            return torch.zeros_like(some), some
        (start, last_start), (first_stop, stop) = (corners.range_of(x, 0) for x in ranges)
        return (last_start <= corners.k[0]) & (first_stop > corners.k[1]), (start <= corners.k[1]) & (
            stop > corners.k[0]
        )

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return self.cu_seqlens_k is None and (self.mask is None or self.mask.allows_diagonal(Tq, Tk))

    def density(self, Tq: int, Tk: int) -> float:
        n = max(1, self.sequences)
        return (1.0 if self.mask is None else self.mask.density(-(-Tq // n), -(-Tk // n))) / n

    def at(self, offset: int | Tensor) -> Mask:
        return self  # each sequence has its own place

    def signature(self) -> Hashable | None:
        inner = None if self.mask is None else self.mask.signature()
        if self.mask is not None and inner is None:
            return None
        tensors = (self.cu_seqlens, self.cu_seqlens_k, self.ids, self.key_ids)
        return Packed, inner, *(tensor_signature(x) for x in tensors)

    def tensors(self) -> tuple[Tensor, ...] | None:
        inner = () if self.mask is None else self.mask.tensors()
        own = (self.cu_seqlens, self.cu_seqlens_k, self.ids, self.key_ids, self.index, self.key_index)
        return None if inner is None else (*(x for x in own if isinstance(x, Tensor)), *inner)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        check_device("Packed", "mask", self.ids, device)
        names = ("cu_seqlens", "cu_seqlens" if self.cu_seqlens_k is None else "cu_seqlens_k")
        for name, what, ids, T in zip(
            names, ("queries", "keys"), (self.ids, self.key_ids), (Tq, Tk), strict=True
        ):
            if len(ids) != T:
                hint = (
                    "; give cu_seqlens_k for keys of other lengths"
                    if what == "keys" and self.cu_seqlens_k is None
                    else ""
                )
                raise ShapeError(
                    f"{name} ends at {len(ids)} and the call has {T} {what}; it must end at {T}{hint}"
                )
        if self.mask is not None:
            self.mask.check(Tq, Tk, heads, (self.sequences,), device)


_JOIN = "join what is counted over the whole row with &: Packed(…) & other"


def _boundaries(name: str, given: object) -> tuple[Tensor, list[int]]:
    """Boundaries as an int64 tensor of our own, and as numbers."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = torch.tensor(given, device="cpu")
    if not isinstance(given, Tensor) or given.ndim != 1 or not len(given):
        got = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
        raise ShapeError(f"{name} is one tensor of boundaries, shape (sequences + 1,), got {got}")
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise DtypeError(f"{name} holds whole numbers, got {given.dtype}; use .int()")
    numbers = given.tolist()
    if numbers[0] != 0:
        raise OptionError(
            f"{name} must start at 0, got {numbers[0]}; give the cumulative lengths with a 0 before them"
        )
    for i, (a, b) in enumerate(pairwise(numbers)):
        if b < a:
            raise OptionError(
                f"{name} must not decrease, got {b} after {a} at index {i + 1}; give cumulative lengths"
            )
    return given.to(torch.int64, copy=True), numbers


def _summed(lengths: Sequence[int]) -> Tensor:
    counts = torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _numbered(boundaries: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """The sequence of each token, and the token's number in it."""
    t = torch.arange(total, device=boundaries.device)
    ids = torch.searchsorted(boundaries[1:], t, right=True)  # empty sequences have no token
    return ids, t - boundaries[ids]


class _Within(Grid):
    """The pairs of a grid, counted within their own sequences. Pairs of different sequences mean nothing here."""

    def __init__(self, grid: Grid, packed: Packed, start: int | Tensor | None = None) -> None:
        self.grid, self.packed, self.start, self.heads = (
            grid,
            packed,
            start,
            1 if isinstance(grid, SinglePair) else grid.heads,
        )

    q = property(lambda self: self.grid.of_queries(self.packed.index))  # type: ignore[assignment]
    k = property(lambda self: self.grid.of_keys(self.packed.key_index))  # type: ignore[assignment]
    head = property(lambda self: self.grid.head)  # type: ignore[assignment]

    def position(self, offset: int | Tensor | None = None) -> Tensor:
        offset = self.start if offset is None else offset
        if offset is None:  # the last query of a sequence meets its last key
            offset = _surplus(self.packed)
        return self.q + (offset if isinstance(offset, int) else self.per_sequence(offset))

    def at(self, start: int | Tensor) -> Grid:
        return _Within(self.grid, self.packed, start)

    def per_sequence(self, x: Tensor) -> Tensor:
        return x[self.grid.of_queries(self.packed.ids)] if x.ndim else x

    def _refuse(self, x: Tensor | None = None) -> Tensor:
        raise OptionError(
            f"Packed's mask is counted within each sequence, so it cannot read one tensor for the whole row; {_JOIN}"
        )

    of_queries = of_keys = of_pairs = _refuse  # type: ignore[assignment]
    Tq = Tk = leading = property(_refuse)  # type: ignore[assignment]


def _surplus(packed: Packed) -> int | Tensor:
    """How many keys each sequence has more than queries."""
    if packed.cu_seqlens_k is None:
        return 0
    return packed.cu_seqlens_k.diff() - packed.cu_seqlens.diff()  # type: ignore[union-attr]


class _Rows:
    """All queries, counted within their sequences: the first key of each in the row, and how many keys there are."""

    def __init__(self, packed: Packed) -> None:
        boundaries: Tensor = packed.cu_seqlens if packed.cu_seqlens_k is None else packed.cu_seqlens_k  # type: ignore[assignment]
        self.ids, self.index, self.surplus = packed.ids, packed.index, _surplus(packed)
        self.first = boundaries[self.ids]
        self.keys = boundaries[self.ids + 1] - self.first

    def position(self, offset: int | Tensor | None) -> Tensor:
        return self.index + self.per_sequence(self.surplus if offset is None else offset)

    def per_sequence(self, x: int | Tensor) -> int | Tensor:
        return x[self.ids] if isinstance(x, Tensor) and x.ndim else x


def _ranges(mask: Mask, rows: _Rows) -> Ranges | None:
    """The keys each query sees, start ≤ key < stop within its sequence; None where that is no range, or not known.

    A mask of a class that changes its parent's rule has lost `key_ranges` (facts.py), and is not known here either.
    """
    kind = type(mask).key_ranges
    zero = torch.zeros_like(rows.keys)
    if isinstance(mask, _Band) and kind is _Band.key_ranges:
        (low, high), t = mask.band(), rows.position(mask.offset)
        start = zero if low is None else (t + low).clamp(min=0).minimum(rows.keys)
        stop = rows.keys if high is None else (t + high + 1).clamp(min=0).minimum(rows.keys)
        return start, stop
    if isinstance(mask, _FirstKeys) and kind is _FirstKeys.key_ranges:
        return zero, (zero + rows.per_sequence(mask.count())).clamp(min=0).minimum(rows.keys)
    if isinstance(mask, And) and kind is And.key_ranges:
        a, b = _ranges(mask.a, rows), _ranges(mask.b, rows)
        if a is None or b is None:
            return None
        start = a[0].maximum(b[0])
        return start, start.maximum(a[1].minimum(b[1]))
    if isinstance(mask, Or) and kind is Or.key_ranges and mask.a.prefix_rows and mask.b.prefix_rows:
        a, b = _ranges(mask.a, rows), _ranges(mask.b, rows)
        return None if a is None or b is None else (zero, a[1].maximum(b[1]))
    return None


def parts(mask: Mask | None) -> Iterator[Mask]:
    """The masks that a mask is joined of."""
    if isinstance(mask, And | Or):
        yield from parts(mask.a)
        yield from parts(mask.b)
    elif isinstance(mask, Not):
        yield from parts(mask.a)
    elif mask is not None:
        yield mask


def check_alignment(mask: Mask | None, *options: Mask | Bias | None) -> None:
    """Refuse what lines up over the whole row beside packed sequences that line up each at its own end."""
    if not any(isinstance(x, Packed) and x.cu_seqlens_k is not None for x in parts(mask)):
        return
    masks = [x for option in (mask, *options) if isinstance(option, Mask) for x in parts(option)]
    for x in masks:
        if isinstance(x, _Band | Dilated) and x.offset is None:
            name = "Causal()" if type(x) is Causal else repr(x)
            raise OptionError(
                f"{name} beside Packed lines up the last query and key of the whole row, and these sequences have keys of other "
                f"lengths; write Packed(cu_seqlens, cu_seqlens_k, mask={name})"
            )
    for x in options:
        if isinstance(x, Bias) and not isinstance(x, DenseBias):
            raise OptionError(
                f"{type(x).__name__} lines up the last query and key of the whole row, and these sequences have keys of other "
                "lengths; give the bias as a tensor, or pad the sequences"
            )
