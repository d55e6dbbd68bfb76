"""`Packed`: several sequences in one row of tokens, without padding; each attends only to itself.

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
    """Sequences concatenated in time: a query sees the keys of its own sequence that `mask` allows.

    >>> cu_seqlens = torch.tensor([0, 3, 5], dtype=torch.int32)   # a sequence of 3 tokens and one of 2
    >>> q = k = v = torch.randn(8, 5, 64)                         # (heads, total, dim)
    >>> out = regard.attend(q, k, v, mask=Packed(cu_seqlens, mask=regard.Causal()))
    >>> out.shape
    torch.Size([8, 5, 64])

    Positions in `mask` are relative to each sequence: Causal() aligns its last query with its last key, also
    if `cu_seqlens_k` gives the keys other lengths (flash-attn's convention). Numbers per sequence, such as
    Prefix(lengths), are per packed sequence. The constructor reads the boundaries: create the mask outside of
    compiled functions.
    """

    cu_seqlens: Boundaries
    cu_seqlens_k: Boundaries | None = None
    mask: Mask | None = None
    ids: Tensor = field(init=False, repr=False)  # the sequence of each query, (Tq,)
    key_ids: Tensor = field(init=False, repr=False)  # the sequence of each key, (Tk,)
    index: Tensor = field(init=False, repr=False)  # the position of each query in its sequence, (Tq,)
    key_index: Tensor = field(init=False, repr=False)  # the position of each key in its sequence, (Tk,)

    def __post_init__(self) -> None:
        queries, numbers = _boundaries("cu_seqlens", self.cu_seqlens)
        keys, key_numbers = (
            (None, numbers) if self.cu_seqlens_k is None else _boundaries("cu_seqlens_k", self.cu_seqlens_k)
        )
        if key_numbers == numbers:
            keys = None
        if len(key_numbers) != len(numbers):
            raise ShapeError(
                f"cu_seqlens has {len(numbers) - 1} sequences and cu_seqlens_k {len(key_numbers) - 1}; "
                "give both the same number"
            )
        if self.mask is not None and not isinstance(self.mask, Mask):
            raise OptionError(
                f"Packed's mask is a Mask such as Causal() or None, got {type(self.mask).__name__}; {_JOIN}"
            )
        for operand in mask_operands(self.mask):
            if isinstance(operand, Dense | Documents | Packed):
                raise OptionError(
                    f"Packed's mask is counted within each sequence, and {type(operand).__name__} within "
                    f"the row; {_JOIN}"
                )
        ids, index = _sequence_ids(queries, numbers[-1])
        key_ids, key_index = (ids, index) if keys is None else _sequence_ids(keys, key_numbers[-1])
        fields = dict(
            cu_seqlens=queries, cu_seqlens_k=keys, ids=ids, key_ids=key_ids, index=index, key_index=key_index
        )
        for name, x in fields.items():
            object.__setattr__(self, name, x)

    @classmethod
    def of_lengths(
        cls, lengths: Sequence[int], key_lengths: Sequence[int] | None = None, *, mask: Mask | None = None
    ) -> Packed:
        """Consecutive sequences of these lengths."""
        return cls(_cumulative(lengths), None if key_lengths is None else _cumulative(key_lengths), mask)

    @property
    def sequences(self) -> int:
        return len(self.cu_seqlens) - 1

    def allowed(self, grid: Grid) -> Tensor:
        same = grid.of_queries(self.ids) == grid.of_keys(self.key_ids)
        return same if self.mask is None else same & self.mask.allowed(_SequenceGrid(grid, self))

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        rows = _Rows(self)
        ranges = (
            (torch.zeros_like(rows.n_keys), rows.n_keys)
            if self.mask is None
            else _ranges_in_sequence(self.mask, rows)
        )
        return None if ranges is None else (ranges[0] + rows.first_key, ranges[1] + rows.first_key)

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        ranges = self.key_ranges(blocks.Tq, blocks.Tk)
        if ranges is None:  # only the sequence of each key is known
            (a, b), (c, d) = blocks.range_of(self.ids, 0), blocks.range_of(self.key_ids, 1)
            some = (a <= d) & (c <= b)
            return torch.zeros_like(some), some
        (start, last_start), (first_stop, stop) = (blocks.range_of(x, 0) for x in ranges)
        every = (last_start <= blocks.k[0]) & (first_stop > blocks.k[1])
        some = (start <= blocks.k[1]) & (stop > blocks.k[0])
        return every, some

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return self.cu_seqlens_k is None and (self.mask is None or self.mask.allows_diagonal(Tq, Tk))

    def density(self, Tq: int, Tk: int) -> float:
        n = max(1, self.sequences)
        return (1.0 if self.mask is None else self.mask.density(-(-Tq // n), -(-Tk // n))) / n

    def with_offset(self, offset: int | Tensor) -> Mask:
        return self  # positions are relative to each sequence

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


_JOIN = "combine a mask over the whole row with &: Packed(…) & other"


def _boundaries(name: str, given: object) -> tuple[Tensor, list[int]]:
    """Boundaries as a new int64 tensor and as a list."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        given = torch.tensor(given, device="cpu")
    if not isinstance(given, Tensor) or given.ndim != 1 or not len(given):
        got = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
        raise ShapeError(f"{name} is one tensor of boundaries, shape (sequences + 1,), got {got}")
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise DtypeError(f"{name} holds integers, got {given.dtype}; use .int()")
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


def _cumulative(lengths: Sequence[int]) -> Tensor:
    counts = torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _sequence_ids(boundaries: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """The sequence of each token and the token's position in it, both (total,)."""
    t = torch.arange(total, device=boundaries.device)
    ids = torch.searchsorted(boundaries[1:], t, right=True)  # empty sequences have no token
    return ids, t - boundaries[ids]


class _SequenceGrid(Grid):
    """A grid with positions relative to each packed sequence. Pairs across sequences are meaningless here."""

    def __init__(self, grid: Grid, packed: Packed, start: int | Tensor | None = None) -> None:
        self.grid, self.packed, self.start = grid, packed, start
        self.heads = 1 if isinstance(grid, SinglePair) else grid.heads

    q = property(lambda self: self.grid.of_queries(self.packed.index))  # type: ignore[assignment]
    k = property(lambda self: self.grid.of_keys(self.packed.key_index))  # type: ignore[assignment]
    head = property(lambda self: self.grid.head)  # type: ignore[assignment]

    def position(self, offset: int | Tensor | None = None) -> Tensor:
        offset = self.start if offset is None else offset
        if offset is None:  # the last query of a sequence is at its last key
            offset = _extra_keys(self.packed)
        return self.q + (offset if isinstance(offset, int) else self.per_sequence(offset))

    def at(self, start: int | Tensor) -> Grid:
        return _SequenceGrid(self.grid, self.packed, start)

    def per_sequence(self, x: Tensor) -> Tensor:
        return x[self.grid.of_queries(self.packed.ids)] if x.ndim else x

    def _refuse(self, x: Tensor | None = None) -> Tensor:
        raise OptionError(
            "Packed's mask is counted within each sequence, so it cannot read one tensor for the whole row; "
            f"{_JOIN}"
        )

    of_queries = of_keys = of_pairs = _refuse  # type: ignore[assignment]
    Tq = Tk = leading = property(_refuse)  # type: ignore[assignment]


def _extra_keys(packed: Packed) -> int | Tensor:
    """Keys minus queries of each sequence."""
    if packed.cu_seqlens_k is None:
        return 0
    return packed.cu_seqlens_k.diff() - packed.cu_seqlens.diff()  # type: ignore[union-attr]


class _Rows:
    """For each query, (Tq,): its position in its sequence, the sequence's first key and number of keys."""

    def __init__(self, packed: Packed) -> None:
        boundaries: Tensor = packed.cu_seqlens if packed.cu_seqlens_k is None else packed.cu_seqlens_k  # type: ignore[assignment]
        self.ids, self.index, self.extra_keys = packed.ids, packed.index, _extra_keys(packed)
        self.first_key = boundaries[self.ids]
        self.n_keys = boundaries[self.ids + 1] - self.first_key

    def position(self, offset: int | Tensor | None) -> Tensor:
        return self.index + self.per_sequence(self.extra_keys if offset is None else offset)

    def per_sequence(self, x: int | Tensor) -> int | Tensor:
        return x[self.ids] if isinstance(x, Tensor) and x.ndim else x


def _ranges_in_sequence(mask: Mask, rows: _Rows) -> Ranges | None:
    """(start, stop) of the keys that each query sees, relative to its sequence; None: unknown.

    A subclass that overrides `allowed` loses `key_ranges` (kernel_hints.py) and is unknown here too.
    """
    kind = type(mask).key_ranges
    zero = torch.zeros_like(rows.n_keys)
    if isinstance(mask, _Band) and kind is _Band.key_ranges:
        (low, high), t = mask.band(), rows.position(mask.offset)
        start = zero if low is None else (t + low).clamp(min=0).minimum(rows.n_keys)
        stop = rows.n_keys if high is None else (t + high + 1).clamp(min=0).minimum(rows.n_keys)
        return start, stop
    if isinstance(mask, _FirstKeys) and kind is _FirstKeys.key_ranges:
        return zero, (zero + rows.per_sequence(mask.count())).clamp(min=0).minimum(rows.n_keys)
    if isinstance(mask, And) and kind is And.key_ranges:
        a, b = _ranges_in_sequence(mask.a, rows), _ranges_in_sequence(mask.b, rows)
        if a is None or b is None:
            return None
        start = a[0].maximum(b[0])
        return start, start.maximum(a[1].minimum(b[1]))
    if isinstance(mask, Or) and kind is Or.key_ranges and mask.a.prefix_rows and mask.b.prefix_rows:
        a, b = _ranges_in_sequence(mask.a, rows), _ranges_in_sequence(mask.b, rows)
        return None if a is None or b is None else (zero, a[1].maximum(b[1]))
    return None


def mask_operands(mask: Mask | None) -> Iterator[Mask]:
    """The masks that `&`, `|` and `~` combine."""
    if isinstance(mask, And | Or):
        yield from mask_operands(mask.a)
        yield from mask_operands(mask.b)
    elif isinstance(mask, Not):
        yield from mask_operands(mask.a)
    elif mask is not None:
        yield mask


def check_alignment(mask: Mask | None, *options: Mask | Bias | None) -> None:
    """Raise if a mask or bias aligns the ends of the row while packed sequences align their own ends."""
    if not any(isinstance(x, Packed) and x.cu_seqlens_k is not None for x in mask_operands(mask)):
        return
    masks = [x for option in (mask, *options) if isinstance(option, Mask) for x in mask_operands(option)]
    for x in masks:
        if isinstance(x, _Band | Dilated) and x.offset is None:
            name = "Causal()" if type(x) is Causal else repr(x)
            raise OptionError(
                f"{name} beside Packed aligns the last query and key of the whole row, and these sequences "
                f"have keys of other lengths; write Packed(cu_seqlens, cu_seqlens_k, mask={name})"
            )
    for x in options:
        if isinstance(x, Bias) and not isinstance(x, DenseBias):
            raise OptionError(
                f"{type(x).__name__} aligns the last query and key of the whole row, and these sequences "
                "have keys of other lengths; give the bias as a tensor, or pad the sequences"
            )
