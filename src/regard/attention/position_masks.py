"""Masks over positions: causal, windows, dilated, padding, prefixes, packed documents.

Kernels read them as key ranges and blocks, without a T×T tensor. The base class, boolean tensors and `&`,
`|`, `~` are in mask.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.grid import BlockGrid, Grid
from regard.attention.mask import (
    Mask,
    Ranges,
    check_offset,
    check_per_sequence,
    only_tensors,
    tensor_signature,
)
from regard.attention.tracing import statically_true
from regard.errors import DtypeError, OptionError, ShapeError


def _integer(name: str, value: object, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{name} must be an integer, got {value!r}")
    if least is not None and value < least:
        raise OptionError(f"{name} must be at least {least}, got {value}")
    return value


def _set_integers(mask: Mask, name: str, value: object, wanted: str) -> None:
    """Store a tensor of integers as int64; narrower types would overflow in sums."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = torch.tensor(value, device="cpu")
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            raise DtypeError(f"{wanted}, got {value.dtype}")
        object.__setattr__(mask, name, value.to(torch.int64))


def _set_offset(mask: Mask) -> None:
    offset = mask.offset  # type: ignore[attr-defined]
    if offset is not None:
        object.__setattr__(mask, "offset", check_offset(type(mask).__name__, offset))


def _column(x: int | Tensor) -> int | Tensor:
    """A number, or one per sequence as (..., 1)."""
    return x[..., None] if isinstance(x, Tensor) and x.ndim else x


def _copy_with_offset(mask: Mask, offset: int | Tensor) -> Mask:
    """A copy of the mask with this `offset`."""
    copied = copy.copy(mask)
    object.__setattr__(copied, "offset", offset)  # masks are frozen dataclasses
    _set_offset(copied)
    return copied


class _Band(Mask):
    """Base class of band masks: low ≤ key − position of the query ≤ high (None: unbounded)."""

    offset: int | Tensor | None

    def band(self) -> tuple[int | None, int | None]:
        raise NotImplementedError

    @property
    def prefix_rows(self) -> bool:  # type: ignore[override]
        return self.band()[0] is None

    def _shift(self, Tq: int, Tk: int) -> int | None:
        """The position of query 0; None if it differs between sequences."""
        return Tk - Tq if self.offset is None else self.offset if isinstance(self.offset, int) else None

    def allowed(self, grid: Grid) -> Tensor:
        low, high = self.band()
        distance = grid.k - grid.position(self.offset)
        if low is None:
            return distance <= high if high is not None else torch.ones_like(distance, dtype=torch.bool)
        return distance >= low if high is None else (distance >= low) & (distance <= high)

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        least, most = blocks.distance(self.offset)
        low, high = self.band()
        every, some = torch.ones_like(least, dtype=torch.bool), torch.ones_like(least, dtype=torch.bool)
        if low is not None:
            every, some = every & (least >= low), some & (most >= low)
        if high is not None:
            every, some = every & (most <= high), some & (least <= high)
        return every, some

    def allows_all(self, Tq: int, Tk: int) -> bool:
        shift, (low, high) = self._shift(Tq, Tk), self.band()
        if shift is None or not statically_true(Tq > 0):
            return False
        return (low is None or statically_true(shift + Tq - 1 + low <= 0)) and (
            high is None or statically_true(shift + high >= Tk - 1)
        )

    def covers(self, Tq: int, Tk: int) -> bool:
        shift, (low, high) = self._shift(Tq, Tk), self.band()
        if shift is None or not (statically_true(Tq > 0) and statically_true(Tk > 0)):
            return False
        last = shift + Tq - 1  # ranges of consecutive queries overlap or touch: check the first and the last
        if low is not None and not (
            statically_true(last + low <= Tk - 1) and statically_true(shift + low <= 0)
        ):
            return False
        return high is None or (statically_true(shift + high >= 0) and statically_true(last + high >= Tk - 1))

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        low, high = self.band()
        return (
            statically_true(self._shift(Tq, Tk) == 0)
            and (low is None or low <= 0)
            and (high is None or high >= 0)
        )

    def density(self, Tq: int, Tk: int) -> float:
        low, high = self.band()
        if not Tq or not Tk:
            return 1.0
        shift = self._shift(Tq, Tk)
        middle = (Tk - Tq if shift is None else shift) + Tq / 2
        start = 0 if low is None else min(max(middle + low, 0), Tk)
        stop = Tk if high is None else min(max(middle + high + 1, 0), Tk)
        return max(0.0, stop - start) / Tk

    def static_band(self, Tq: int, Tk: int) -> tuple[int, int] | None:
        shift, (low, high) = self._shift(Tq, Tk), self.band()
        if shift is None:
            return None
        return -Tq if low is None else low + shift, Tk if high is None else high + shift

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        low, high = self.band()
        t = torch.arange(Tq, device=device) + _column(Tk - Tq if self.offset is None else self.offset)
        start = torch.zeros_like(t) if low is None else (t + low).clamp(0, Tk)
        stop = torch.full_like(t, Tk) if high is None else (t + high + 1).clamp(0, Tk)
        return start, stop

    def with_offset(self, offset: int | Tensor) -> Mask:
        return _copy_with_offset(self, offset) if self.offset is None else self

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        check_per_sequence(f"{type(self).__name__}'s offset", self.offset, leading, device)


@dataclass(frozen=True, eq=False)
class Causal(_Band):
    """A query sees no later key: e_ij = −∞ where j > i.

    >>> q = k = torch.zeros(1, 1, 2, 4)
    >>> regard.weights(q, k, mask=regard.Causal())[0, 0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """

    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        if self.offset is not None:
            _set_offset(self)

    def band(self) -> tuple[int | None, int | None]:
        return None, 0

    def signature(self) -> Hashable | None:
        return Causal if self.offset is None else (Causal, tensor_signature(self.offset))

    def tensors(self) -> tuple[Tensor, ...] | None:
        return only_tensors(self.offset)


@dataclass(frozen=True, eq=False)
class Window(_Band):
    """Sliding window: the query at t sees keys t − left ≤ s ≤ t + right; None is unbounded.

    >>> q = k = torch.zeros(1, 1, 4, 2)
    >>> regard.weights(q, k, mask=regard.Causal() & regard.Window(left=1))[0, 0, 3].tolist()
    [0.0, 0.0, 0.5, 0.5]
    """

    left: int | None
    right: int | None = 0
    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            if getattr(self, name) is not None:
                _integer(f"Window's {name}", getattr(self, name), 0)
        _set_offset(self)

    @classmethod
    def centered(cls, K: int, offset: int | Tensor | None = None) -> Window:
        """Schmidt-Thieme's restricted attention: distance at most K/2, that is K + 1 keys for even K."""
        _integer("the window size K", K, 0)
        return cls(K // 2, K // 2, offset)

    def band(self) -> tuple[int | None, int | None]:
        return (None if self.left is None else -self.left), self.right

    def signature(self) -> Hashable | None:
        return Window, self.left, self.right, tensor_signature(self.offset)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return only_tensors(self.offset)


@dataclass(frozen=True, eq=False)
class Diagonal(_Band):
    """A token sees only itself; `~Diagonal()`: all tokens but itself."""

    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        _set_offset(self)

    def band(self) -> tuple[int | None, int | None]:
        return 0, 0

    def signature(self) -> Hashable | None:
        return Diagonal, tensor_signature(self.offset)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return only_tensors(self.offset)


@dataclass(frozen=True, eq=False)
class Dilated(Mask):
    """Dilated (strided) attention: keys at a distance divisible by `step`.

    Combine: `Dilated(4) & Window(64)`.
    """

    step: int
    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        _integer("Dilated's step", self.step, 1)
        _set_offset(self)

    def allowed(self, grid: Grid) -> Tensor:
        return (grid.k - grid.position(self.offset)) % self.step == 0

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        least, most = blocks.distance(self.offset)
        some = torch.div(most, self.step, rounding_mode="floor") * self.step >= least
        return some & ((least == most) | (self.step == 1)), some

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return not isinstance(self.offset, Tensor) and statically_true(
            (Tk - Tq if self.offset is None else self.offset) == 0
        )

    def signature(self) -> Hashable | None:
        return Dilated, self.step, tensor_signature(self.offset)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return only_tensors(self.offset)

    def with_offset(self, offset: int | Tensor) -> Mask:
        return _copy_with_offset(self, offset) if self.offset is None else self

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        check_per_sequence("Dilated's offset", self.offset, leading, device)


class _FirstKeys(Mask):
    """Base class of masks under which the first n keys are visible; n is one number or one per sequence."""

    prefix_rows = True

    def count(self) -> int | Tensor:
        raise NotImplementedError

    def allowed(self, grid: Grid) -> Tensor:
        n = self.count()
        return grid.k < (grid.per_sequence(n) if isinstance(n, Tensor) else n)

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        n = self.count()
        n = blocks.per_sequence(n) if isinstance(n, Tensor) else n
        every, some = blocks.k[1] < n, blocks.k[0] < n
        rows = torch.ones_like(blocks.q[0], dtype=torch.bool)
        return every & rows, some & rows

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        n = self.count()
        stop = n if isinstance(n, Tensor) else torch.full((), n, dtype=torch.int64, device=device)
        stop = stop.clamp(0, Tk)[..., None].expand(*stop.shape, Tq)
        return torch.zeros_like(stop), stop

    def allows_all(self, Tq: int, Tk: int) -> bool:
        n = self.count()
        return not isinstance(n, Tensor) and statically_true(n >= Tk)

    def with_offset(self, offset: int | Tensor) -> Mask:
        return self

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        name, n = type(self).__name__, self.count()
        check_per_sequence(f"{name}'s counts", n, leading, device)
        if not isinstance(n, Tensor) and n > Tk:
            raise ShapeError(
                f"{name}({n}) was made for at least {n} keys and the call has {Tk}; give at most {Tk}"
            )


def _set_counts(mask: Mask, name: str) -> None:
    """Check the attribute `name`, a number of keys or one per sequence, and store tensors as int64."""
    value = getattr(mask, name)
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        raise DtypeError(
            f"{type(mask).__name__} counts keys, so it takes integers, got torch.bool; "
            "give lengths, or pass a boolean tensor as the mask itself"
        )
    _set_integers(mask, name, value, f"{type(mask).__name__} counts keys, so it takes integers")
    if not isinstance(getattr(mask, name), Tensor):
        _integer(f"{type(mask).__name__}'s count", value, 0)


@dataclass(frozen=True, eq=False)
class Padding(_FirstKeys):
    """A padded batch: only the first `lengths` keys of each sequence are visible.

    >>> q = k = torch.randn(2, 1, 3, 4)
    >>> regard.weights(q, k, mask=regard.Padding([3, 1]))[1, 0, 0].tolist()
    [1.0, 0.0, 0.0]

    `finite=True`: you guarantee that padded positions are finite and that no length is 0; kernels then skip
    clearing them.
    """

    lengths: Tensor | Sequence[int] | int
    finite: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.lengths, Tensor) and self.lengths.dtype is torch.int64):
            _set_counts(self, "lengths")

    def count(self) -> int | Tensor:
        return self.lengths  # type: ignore[return-value]

    def covers(self, Tq: int, Tk: int) -> bool:
        return self.finite

    def cached(self, position: Tensor, convert: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The visible keys, (batch, 1, 1, Tk), after `convert`; cached for layers that share this mask."""
        lengths: Tensor = self.lengths  # type: ignore[assignment]
        cache = self.__dict__.get("_cache")
        if (
            cache is not None
            and cache[0] is lengths
            and cache[1] == lengths._version
            and cache[2] is position
            and cache[3] is convert
        ):
            return cache[4]
        visible = position < lengths.view(-1, 1, 1, 1)
        visible = visible if convert is None else convert(visible)
        if not lengths.is_inference():
            object.__setattr__(self, "_cache", (lengths, lengths._version, position, convert, visible))
        return visible

    def signature(self) -> Hashable | None:
        return Padding, self.finite, tensor_signature(self.lengths)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return only_tensors(self.lengths)


@dataclass(frozen=True, eq=False)
class Prefix(_FirstKeys):
    """All queries see the first `length` keys; `Causal() | Prefix(n)` is a prefix language model."""

    length: Tensor | Sequence[int] | int

    def __post_init__(self) -> None:
        _set_counts(self, "length")

    def count(self) -> int | Tensor:
        return self.length  # type: ignore[return-value]

    def signature(self) -> Hashable | None:
        return Prefix, tensor_signature(self.length)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return only_tensors(self.length)


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Documents packed in one row without padding: a token sees its own document. ids: (T,) or (batch, T).

    For boundaries (`cu_seqlens`), keys of other lengths and masks within a document, see `Packed`.
    """

    ids: Tensor
    key_ids: Tensor | None = None

    def __post_init__(self) -> None:
        wanted = "Documents takes a tensor of integers, one document id per token, shape (T,) or (batch, T)"
        for name in ("ids", "key_ids"):
            x = getattr(self, name)
            if x is None and name == "key_ids":
                continue
            if not isinstance(x, Tensor) or x.ndim < 1 or x.is_floating_point() or x.is_complex():
                raise OptionError(wanted)
            _set_integers(self, name, x, wanted)

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Documents:
        """Consecutive documents of these lengths."""
        counts = torch.as_tensor(lengths, device="cpu")
        return cls(torch.repeat_interleave(torch.arange(len(counts), device="cpu"), counts))

    @property
    def _keys(self) -> Tensor:
        return self.ids if self.key_ids is None else self.key_ids

    def allowed(self, grid: Grid) -> Tensor:
        return grid.of_queries(self.ids) == grid.of_keys(self._keys)

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        (a, b), (c, d) = blocks.range_of(self.ids, 0), blocks.range_of(self._keys, 1)
        return (a == b) & (c == d) & (a == c), (a <= d) & (c <= b)

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        keys = self._keys
        if keys.shape[-1] == 0 or torch.compiler.is_compiling() or not bool((keys.diff() >= 0).all()):
            return None  # the keys of a document must be contiguous
        leading = torch.broadcast_shapes(keys.shape[:-1], self.ids.shape[:-1])
        keys, ids = (x.expand(*leading, x.shape[-1]).contiguous() for x in (keys, self.ids))
        return torch.searchsorted(keys, ids), torch.searchsorted(keys, ids, right=True)

    def density(self, Tq: int, Tk: int) -> float:
        return 0.5

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return self.key_ids is None

    def signature(self) -> Hashable | None:
        return Documents, tensor_signature(self.ids), tensor_signature(self.key_ids)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return only_tensors(self.ids, self.key_ids)

    def with_offset(self, offset: int | Tensor) -> Mask:
        return self

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        check_per_sequence("Documents' ids", self.ids, leading, device, Tq)
        check_per_sequence("Documents' key ids", self._keys, leading, device, Tk)
