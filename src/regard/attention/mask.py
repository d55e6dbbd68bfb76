"""Masks: which keys a query may see. True means allowed, as in torch's boolean masks.

A mask is a rule, not a T×T tensor, so that kernels can read it: `key_ranges` says when every query sees one range of
neighbouring keys (causal, windows, padding, packed documents and their intersections do), and `blocks` says which blocks of
the matrix are full, partial or empty. Both cost no T×T. Masks combine with `&`, `|` and `~`, also with boolean tensors.

Positions line up at the end: the last query meets the last key, so that a decoder with a cache needs no arithmetic.
`offset=` places query 0 at another key; torch's `is_causal` is `Causal(offset=0)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.facts import forget
from regard.attention.grid import Corners, Grid
from regard.attention.tracing import surely
from regard.errors import DeviceError, DtypeError, OptionError, ShapeError

EMPTY, PARTIAL, FULL = 0, 1, 2
FACTS = ("block_bounds", "key_ranges", "allows_all", "covers", "allows_diagonal", "static_band", "share", "prefix_rows")
Ranges = tuple[Tensor, Tensor]


class Mask:
    """The parent of all masks. A subclass needs `allowed` alone; the other methods are facts that make kernels faster.

    Except in `allowed`, `key_ranges` and `block_bounds`, no method reads the values of a tensor.
    """

    prefix_rows = False  # every row allows the keys from the first up to some key

    def __init_subclass__(cls, **more: object) -> None:
        super().__init_subclass__(**more)
        facts = {n: getattr(Mask, n) for n in FACTS}
        forget(cls, ("allowed",), facts, {"signature": Mask.signature, "tensors": Mask.tensors})

    def allowed(self, grid: Grid) -> Tensor:
        """True where the query may see the key, for the pairs of `grid`; broadcasts to (..., heads, n, m)."""
        raise NotImplementedError

    def block_bounds(self, corners: Corners) -> tuple[Tensor, Tensor]:
        """For each block: is every pair surely allowed, and is any pair possibly allowed. Unless a mask knows better: unsure."""
        some = torch.ones(corners.q[0].shape[0], corners.k[0].shape[1], dtype=torch.bool, device=corners.q[0].device)
        return ~some, some

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        """(start, stop), each (*leading or nothing, Tq), when query i sees exactly the keys start ≤ j < stop; else None."""
        return None

    def allows_all(self, Tq: int, Tk: int) -> bool:
        """Whether every query surely sees every key, as in a decoding step."""
        return False

    def covers(self, Tq: int, Tk: int) -> bool:
        """Whether every query surely sees a key, and every key is surely seen by a query or known to be finite."""
        return surely(Tq == Tk) and self.allows_diagonal(Tq, Tk)

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        """Whether query i surely sees key i, for all i."""
        return False

    def share(self, Tq: int, Tk: int) -> float:
        """About which share of the pairs is allowed: for choosing a kernel."""
        return 1.0

    def static_band(self, Tq: int, Tk: int) -> tuple[int, int] | None:
        """(low, high) when exactly the pairs with low ≤ key − query ≤ high are allowed, for all sequences; else None."""
        return None

    def signature(self) -> Hashable | None:
        """Everything that checks and planning read of this mask; None: unknown, plan at every call."""
        return None

    def tensors(self) -> tuple[Tensor, ...] | None:
        """All tensors this mask reads; None: unknown."""
        return None

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        """Raise when this mask was not made for such a call."""

    def dense(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Tensor:
        """The mask as a boolean tensor that broadcasts to (..., heads, Tq, Tk)."""
        allowed = self.allowed(Grid(Tq, Tk, device=device))
        return allowed.expand(*allowed.shape[:-2], Tq, Tk)

    def blocks(self, Tq: int, Tk: int, block: int | tuple[int, int] = 128, device: torch.device | str | None = None) -> Tensor:
        """EMPTY (0), PARTIAL (1) or FULL (2) for each block, (..., ⌈Tq/block⌉, ⌈Tk/block⌉). Unsure is PARTIAL."""
        size = (block, block) if isinstance(block, int) else block
        every, some = self.block_bounds(Corners(Tq, Tk, size, device))
        return torch.where(every, FULL, torch.where(some, PARTIAL, EMPTY)).to(torch.int8)

    def __and__(self, other: Mask | Tensor) -> Mask:
        return And(self, _mask(other))

    def __rand__(self, other: Mask | Tensor) -> Mask:
        return And(_mask(other), self)

    def __or__(self, other: Mask | Tensor) -> Mask:
        return Or(self, _mask(other))

    def __ror__(self, other: Mask | Tensor) -> Mask:
        return Or(_mask(other), self)

    def __invert__(self) -> Mask:
        return Not(self)


def _mask(x: object) -> Mask:
    if isinstance(x, Mask):
        return x
    if isinstance(x, Tensor):
        return Dense(x)
    raise OptionError(f"a mask combines with masks and boolean tensors, not with {type(x).__name__}")


def describe_tensor(x: object) -> Hashable:
    """What checks and planning read of a number or a tensor: never its values."""
    return (x.shape, x.dtype, x.device, x.requires_grad, type(x)) if isinstance(x, Tensor) else x


def _only_tensors(*values: object) -> tuple[Tensor, ...]:
    return tuple(x for x in values if isinstance(x, Tensor))


def _integer(name: str, value: object, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{name} must be a whole number, got {value!r}")
    if least is not None and value < least:
        raise OptionError(f"{name} must be at least {least}, got {value}")
    return value


def _set_integers(mask: Mask, name: str, value: object, wanted: str) -> None:
    """Store a tensor of integers of any type as int64: narrow types wrap around in sums and differences."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = torch.tensor(value, device="cpu")
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            raise DtypeError(f"{wanted}, got {value.dtype}")
        object.__setattr__(mask, name, value.to(torch.int64))


def _set_offset(mask: Mask) -> None:
    name, offset = type(mask).__name__, mask.offset  # type: ignore[attr-defined]
    if offset is None or (isinstance(offset, int) and not isinstance(offset, bool)):
        return
    if not isinstance(offset, Tensor) or offset.is_floating_point() or offset.dtype == torch.bool:
        raise OptionError(f"{name}'s offset is a whole number or one whole number per sequence, got {offset!r}")
    _set_integers(mask, "offset", offset, "")


def _check_numbers(name: str, x: object, leading: Sequence[int], device: torch.device, length: int | None = None) -> None:
    """A tensor of numbers per sequence (and per position, if length is given) fits the call."""
    if not isinstance(x, Tensor):
        return
    if x.device != device:
        raise DeviceError(f"{name} is on {x.device} and the query on {device}; move one with .to()")
    shape = tuple(x.shape)
    if length is not None:
        if shape[-1] != length:
            raise ShapeError(f"{name} was made for {shape[-1]} positions and the call has {length}; make it for {length}")
        shape = shape[:-1]
    given = (1,) * (len(leading) - len(shape)) + shape
    if len(given) > len(leading) or any(a not in (1, b) for a, b in zip(given, leading, strict=True)):
        raise ShapeError(
            f"{name} has one entry for each of {shape} sequences and the batch is {tuple(leading)}; give {tuple(leading)} entries"
        )


def _column(x: int | Tensor) -> int | Tensor:
    """A number, or one per sequence as (..., 1)."""
    return x[..., None] if isinstance(x, Tensor) and x.ndim else x


class _Band(Mask):
    """A rule on the distance key − position of query: low ≤ distance ≤ high (None: unbounded)."""

    offset: int | Tensor | None

    def band(self) -> tuple[int | None, int | None]:
        raise NotImplementedError

    @property
    def prefix_rows(self) -> bool:  # type: ignore[override]
        return self.band()[0] is None

    def _shift(self, Tq: int, Tk: int) -> int | None:
        """Where query 0 stands among the keys; None when that differs by sequence."""
        return Tk - Tq if self.offset is None else self.offset if isinstance(self.offset, int) else None

    def allowed(self, grid: Grid) -> Tensor:
        low, high = self.band()
        distance = grid.k - grid.position(self.offset)
        if low is None:
            return distance <= high if high is not None else torch.ones_like(distance, dtype=torch.bool)
        return distance >= low if high is None else (distance >= low) & (distance <= high)

    def block_bounds(self, corners: Corners) -> tuple[Tensor, Tensor]:
        least, most = corners.distance(self.offset)
        low, high = self.band()
        every, some = torch.ones_like(least, dtype=torch.bool), torch.ones_like(least, dtype=torch.bool)
        if low is not None:
            every, some = every & (least >= low), some & (most >= low)
        if high is not None:
            every, some = every & (most <= high), some & (least <= high)
        return every, some

    def allows_all(self, Tq: int, Tk: int) -> bool:
        shift, (low, high) = self._shift(Tq, Tk), self.band()
        if shift is None or not surely(Tq > 0):
            return False
        return (low is None or surely(shift + Tq - 1 + low <= 0)) and (high is None or surely(shift + high >= Tk - 1))

    def covers(self, Tq: int, Tk: int) -> bool:
        shift, (low, high) = self._shift(Tq, Tk), self.band()
        if shift is None or not (surely(Tq > 0) and surely(Tk > 0)):
            return False
        last = shift + Tq - 1  # the ranges of neighbouring queries overlap or touch, so the outermost decide
        if low is not None and not (surely(last + low <= Tk - 1) and surely(shift + low <= 0)):
            return False
        return high is None or (surely(shift + high >= 0) and surely(last + high >= Tk - 1))

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        low, high = self.band()
        return surely(self._shift(Tq, Tk) == 0) and (low is None or low <= 0) and (high is None or high >= 0)

    def share(self, Tq: int, Tk: int) -> float:
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

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        _check_numbers(f"{type(self).__name__}'s offset", self.offset, leading, device)


@dataclass(frozen=True, eq=False)
class Causal(_Band):
    """No key after the query: e_ij = −∞ where j > i."""

    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        if self.offset is not None:
            _set_offset(self)

    def band(self) -> tuple[int | None, int | None]:
        return None, 0

    def signature(self) -> Hashable | None:
        return Causal if self.offset is None else (Causal, describe_tensor(self.offset))

    def tensors(self) -> tuple[Tensor, ...] | None:
        return _only_tensors(self.offset)


@dataclass(frozen=True, eq=False)
class Window(_Band):
    """Neighbours only: t − left ≤ s ≤ t + right; None leaves a side open."""

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
        """The lecture's restricted attention: distance at most K/2, which is K + 1 keys for even K."""
        _integer("the window size K", K, 0)
        return cls(K // 2, K // 2, offset)

    def band(self) -> tuple[int | None, int | None]:
        return (None if self.left is None else -self.left), self.right

    def signature(self) -> Hashable | None:
        return Window, self.left, self.right, describe_tensor(self.offset)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return _only_tensors(self.offset)


@dataclass(frozen=True, eq=False)
class Diagonal(_Band):
    """A token and itself; `~Diagonal()` is attention to all but oneself."""

    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        _set_offset(self)

    def band(self) -> tuple[int | None, int | None]:
        return 0, 0

    def signature(self) -> Hashable | None:
        return Diagonal, describe_tensor(self.offset)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return _only_tensors(self.offset)


@dataclass(frozen=True, eq=False)
class Dilated(Mask):
    """Every step-th key counted from the query: distance divisible by `step`. `Dilated(4) & Window(64)` is a comb."""

    step: int
    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        _integer("Dilated's step", self.step, 1)
        _set_offset(self)

    def allowed(self, grid: Grid) -> Tensor:
        return (grid.k - grid.position(self.offset)) % self.step == 0

    def block_bounds(self, corners: Corners) -> tuple[Tensor, Tensor]:
        least, most = corners.distance(self.offset)
        some = torch.div(most, self.step, rounding_mode="floor") * self.step >= least
        return some & ((least == most) | (self.step == 1)), some

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return not isinstance(self.offset, Tensor) and surely((Tk - Tq if self.offset is None else self.offset) == 0)

    def signature(self) -> Hashable | None:
        return Dilated, self.step, describe_tensor(self.offset)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return _only_tensors(self.offset)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        _check_numbers("Dilated's offset", self.offset, leading, device)


class _FirstKeys(Mask):
    """The first n keys, n one number or one per sequence."""

    prefix_rows = True

    def count(self) -> int | Tensor:
        raise NotImplementedError

    def allowed(self, grid: Grid) -> Tensor:
        n = self.count()
        return grid.k < (grid.per_sequence(n) if isinstance(n, Tensor) else n)

    def block_bounds(self, corners: Corners) -> tuple[Tensor, Tensor]:
        n = self.count()
        n = corners.per_sequence(n) if isinstance(n, Tensor) else n
        every, some = corners.k[1] < n, corners.k[0] < n
        rows = torch.ones_like(corners.q[0], dtype=torch.bool)
        return every & rows, some & rows

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        n = self.count()
        stop = n if isinstance(n, Tensor) else torch.full((), n, dtype=torch.int64, device=device)
        stop = stop.clamp(0, Tk)[..., None].expand(*stop.shape, Tq)
        return torch.zeros_like(stop), stop

    def allows_all(self, Tq: int, Tk: int) -> bool:
        n = self.count()
        return not isinstance(n, Tensor) and surely(n >= Tk)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        name, n = type(self).__name__, self.count()
        _check_numbers(f"{name}'s counts", n, leading, device)
        if not isinstance(n, Tensor) and n > Tk:
            raise ShapeError(f"{name}({n}) was made for at least {n} keys and the call has {Tk}; give at most {Tk}")


def _set_counts(mask: Mask, name: str) -> None:
    value = getattr(mask, name)
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        raise DtypeError(
            f"{type(mask).__name__} counts keys, so it takes whole numbers, got torch.bool; "
            "give lengths, or pass a boolean tensor as the mask itself"
        )
    _set_integers(mask, name, value, f"{type(mask).__name__} counts keys, so it takes whole numbers")
    if not isinstance(getattr(mask, name), Tensor):
        _integer(f"{type(mask).__name__}'s count", value, 0)


@dataclass(frozen=True, eq=False)
class Padding(_FirstKeys):
    """Sequences of unequal length in one batch: of each, only the first `lengths` keys are real.

    `finite=True`: you guarantee that padded positions are finite and that no length is 0; kernels then skip clearing them.
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

    def cached(self, lengths: Tensor, position: Tensor) -> Tensor:
        """The keys that are real, (batch, 1, 1, Tk), made once for all layers that share this mask."""
        made = self.__dict__.get("_made")
        if made is not None and made[0] is lengths and made[1] == lengths._version and made[2] is position:
            return made[3]
        real = position < lengths.view(-1, 1, 1, 1)
        if not lengths.is_inference():
            object.__setattr__(self, "_made", (lengths, lengths._version, position, real))
        return real

    def signature(self) -> Hashable | None:
        return Padding, self.finite, describe_tensor(self.lengths)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return _only_tensors(self.lengths)


@dataclass(frozen=True, eq=False)
class Prefix(_FirstKeys):
    """The first `length` keys are seen by all; `Causal() | Prefix(n)` is a prefix language model."""

    length: Tensor | Sequence[int] | int

    def __post_init__(self) -> None:
        _set_counts(self, "length")

    def count(self) -> int | Tensor:
        return self.length  # type: ignore[return-value]

    def signature(self) -> Hashable | None:
        return Prefix, describe_tensor(self.length)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return _only_tensors(self.length)


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Several documents packed in one row without padding: a token sees its own document. ids: (T,) or (batch, T)."""

    ids: Tensor
    key_ids: Tensor | None = None

    def __post_init__(self) -> None:
        wanted = "Documents takes a tensor of whole numbers, one document id per token, shape (T,) or (batch, T)"
        for name in ("ids", "key_ids"):
            x = getattr(self, name)
            if x is None and name == "key_ids":
                continue
            if not isinstance(x, Tensor) or x.ndim < 1 or x.is_floating_point() or x.is_complex():
                raise OptionError(wanted)
            _set_integers(self, name, x, wanted)

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Documents:
        """Documents of these lengths, one after the other."""
        counts = torch.as_tensor(lengths, device="cpu")
        return cls(torch.repeat_interleave(torch.arange(len(counts), device="cpu"), counts))

    @property
    def _keys(self) -> Tensor:
        return self.ids if self.key_ids is None else self.key_ids

    def allowed(self, grid: Grid) -> Tensor:
        return grid.of_queries(self.ids) == grid.of_keys(self._keys)

    def block_bounds(self, corners: Corners) -> tuple[Tensor, Tensor]:
        (a, b), (c, d) = corners.range_of(self.ids, 0), corners.range_of(self._keys, 1)
        return (a == b) & (c == d) & (a == c), (a <= d) & (c <= b)

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        keys = self._keys
        if keys.shape[-1] == 0 or torch.compiler.is_compiling() or not bool((keys.diff() >= 0).all()):
            return None  # a document's keys must stand together
        lead = torch.broadcast_shapes(keys.shape[:-1], self.ids.shape[:-1])
        keys, ids = (x.expand(*lead, x.shape[-1]).contiguous() for x in (keys, self.ids))
        return torch.searchsorted(keys, ids), torch.searchsorted(keys, ids, right=True)

    def share(self, Tq: int, Tk: int) -> float:
        return 0.5

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return self.key_ids is None

    def signature(self) -> Hashable | None:
        return Documents, describe_tensor(self.ids), describe_tensor(self.key_ids)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return _only_tensors(self.ids, self.key_ids)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        _check_numbers("Documents' ids", self.ids, leading, device, Tq)
        _check_numbers("Documents' key ids", self._keys, leading, device, Tk)


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """Any boolean tensor that broadcasts to (..., heads, Tq, Tk), True where attention is allowed. Two axes are (Tq, Tk)."""

    tensor: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, Tensor):
            raise OptionError(f"Dense takes a boolean tensor, got {type(self.tensor).__name__}")
        if self.tensor.dtype != torch.bool:
            raise DtypeError(
                f"a mask is boolean, True where attention is allowed, got {self.tensor.dtype}; "
                "write mask.bool() for 0/1, or pass numbers to be added as bias="
            )

    def allowed(self, grid: Grid) -> Tensor:
        return grid.of_pairs(self.tensor)

    def block_bounds(self, corners: Corners) -> tuple[Tensor, Tensor]:
        x = self.tensor.expand(*self.tensor.shape[:-2], corners.Tq, corners.Tk)
        (a, b), (n, m) = corners.block, (corners.q[0].numel(), corners.k[0].numel())

        def parts(fill: bool) -> Tensor:
            pad = torch.nn.functional.pad(x, (0, m * b - corners.Tk, 0, n * a - corners.Tq), value=fill)
            return pad.unflatten(-1, (m, b)).unflatten(-3, (n, a))

        return parts(True).all(-1).all(-2), parts(False).any(-1).any(-2)

    def signature(self) -> Hashable | None:
        return Dense, describe_tensor(self.tensor)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return (self.tensor,)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        if self.tensor.device != device:
            raise DeviceError(f"the mask is on {self.tensor.device} and the query on {device}; move one with .to()")
        check_pairs("the mask", self.tensor, (*leading, heads, Tq, Tk))


def check_pairs(name: str, x: Tensor, full: tuple[int, ...]) -> None:
    """x broadcasts to (*leading, heads, Tq, Tk)."""
    given = (1,) * (len(full) - x.ndim) + tuple(x.shape)
    if len(given) > len(full) or any(a not in (1, b) for a, b in zip(given, full, strict=True)):
        fix = "each of its axes must be 1 or equal, counted from the right"
        if name == "the mask" and x.ndim == 2 and tuple(x.shape) == (*full[:-3], full[-1]):
            fix = "for one row of keys per sequence, (batch, Tk), write mask[:, None, None, :] or Padding(lengths)"
        raise ShapeError(f"{name} of shape {tuple(x.shape)} does not broadcast to (…, heads, Tq, Tk) = {full}; {fix}")


class _Pair(Mask):
    """Two masks joined."""

    a: Mask
    b: Mask

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        self.a.check(Tq, Tk, heads, leading, device)
        self.b.check(Tq, Tk, heads, leading, device)

    def both_ranges(self, Tq: int, Tk: int, device: torch.device | str | None) -> tuple[Ranges, Ranges] | None:
        a = self.a.key_ranges(Tq, Tk, device)
        b = self.b.key_ranges(Tq, Tk, device) if a is not None else None
        return None if a is None or b is None else (a, b)

    def both_signatures(self) -> Hashable | None:
        a, b = self.a.signature(), self.b.signature()
        return None if a is None or b is None else (type(self), a, b)

    def both_tensors(self) -> tuple[Tensor, ...] | None:
        a, b = self.a.tensors(), self.b.tensors()
        return None if a is None or b is None else a + b


@dataclass(frozen=True, eq=False)
class And(_Pair):
    """Allowed by both."""

    a: Mask
    b: Mask

    @property
    def prefix_rows(self) -> bool:  # type: ignore[override]
        return self.a.prefix_rows and self.b.prefix_rows

    def allowed(self, grid: Grid) -> Tensor:
        return self.a.allowed(grid) & self.b.allowed(grid)

    def block_bounds(self, corners: Corners) -> tuple[Tensor, Tensor]:
        (a, some_a), (b, some_b) = self.a.block_bounds(corners), self.b.block_bounds(corners)
        return a & b, some_a & some_b

    def allows_all(self, Tq: int, Tk: int) -> bool:
        return self.a.allows_all(Tq, Tk) and self.b.allows_all(Tq, Tk)

    def covers(self, Tq: int, Tk: int) -> bool:
        """Two prefixes that hold a key have the first in common, and the last query sees of both all there is."""
        return super().covers(Tq, Tk) or (self.prefix_rows and self.a.covers(Tq, Tk) and self.b.covers(Tq, Tk))

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return self.a.allows_diagonal(Tq, Tk) and self.b.allows_diagonal(Tq, Tk)

    def share(self, Tq: int, Tk: int) -> float:
        return min(self.a.share(Tq, Tk), self.b.share(Tq, Tk))

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        both = self.both_ranges(Tq, Tk, device)
        if both is None:
            return None
        (a, b), (c, d) = both
        start, stop = torch.maximum(a, c), torch.minimum(b, d)
        return start, torch.maximum(start, stop)

    def signature(self) -> Hashable | None:
        return self.both_signatures()

    def tensors(self) -> tuple[Tensor, ...] | None:
        return self.both_tensors()


@dataclass(frozen=True, eq=False)
class Or(_Pair):
    """Allowed by either."""

    a: Mask
    b: Mask

    def allowed(self, grid: Grid) -> Tensor:
        return self.a.allowed(grid) | self.b.allowed(grid)

    def block_bounds(self, corners: Corners) -> tuple[Tensor, Tensor]:
        (a, some_a), (b, some_b) = self.a.block_bounds(corners), self.b.block_bounds(corners)
        return a | b, some_a | some_b

    def allows_all(self, Tq: int, Tk: int) -> bool:
        return self.a.allows_all(Tq, Tk) or self.b.allows_all(Tq, Tk)

    def covers(self, Tq: int, Tk: int) -> bool:
        return self.a.covers(Tq, Tk) or self.b.covers(Tq, Tk)

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return self.a.allows_diagonal(Tq, Tk) or self.b.allows_diagonal(Tq, Tk)

    def share(self, Tq: int, Tk: int) -> float:
        return min(1.0, self.a.share(Tq, Tk) + self.b.share(Tq, Tk))

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        """Two ranges that both begin at the first key are one range, as in a prefix language model."""
        if not (self.a.prefix_rows and self.b.prefix_rows):
            return None
        both = self.both_ranges(Tq, Tk, device)
        if both is None:
            return None
        stop = torch.maximum(both[0][1], both[1][1])
        return torch.zeros_like(stop), stop

    def signature(self) -> Hashable | None:
        return self.both_signatures()

    def tensors(self) -> tuple[Tensor, ...] | None:
        return self.both_tensors()


@dataclass(frozen=True, eq=False)
class Not(Mask):
    """Allowed where the other forbids."""

    a: Mask

    def allowed(self, grid: Grid) -> Tensor:
        return ~self.a.allowed(grid)

    def block_bounds(self, corners: Corners) -> tuple[Tensor, Tensor]:
        every, some = self.a.block_bounds(corners)
        return ~some, ~every

    def signature(self) -> Hashable | None:
        a = self.a.signature()
        return None if a is None else (Not, a)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return self.a.tensors()

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        self.a.check(Tq, Tk, heads, leading, device)
