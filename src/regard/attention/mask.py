"""Masks: which keys a query may see. True means allowed, as in torch's boolean masks.

A mask is a rule, not a T×T tensor, so that kernels can read it: `runs` says when every query sees one run of neighbouring
keys (causal, windows, padding, packed documents and their intersections do), and `blocks` says which blocks of the
matrix are full, partial or empty. Both cost no T×T. Masks combine with `&`, `|` and `~`.

Positions line up at the end: the last query meets the last key, so that a decoder with a cache needs no arithmetic.
`offset=` places query 0 at another key; torch's `is_causal` is `Causal(offset=0)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.grid import Corners, Grid
from regard.errors import DeviceError, DtypeError, OptionError, ShapeError

EMPTY, PARTIAL, FULL = 0, 1, 2
Runs = tuple[Tensor, Tensor]


class Mask:
    """The parent of all masks."""

    def allowed(self, grid: Grid) -> Tensor:
        """True where the query may see the key, for the pairs of `grid`; broadcasts to (..., heads, n, m)."""
        raise NotImplementedError

    def judge(self, corners: Corners) -> tuple[Tensor, Tensor]:
        """For each block: is surely every pair allowed, and is possibly any. Unless a mask knows better: unsure."""
        some = torch.ones(corners.q[0].shape[0], corners.k[0].shape[1], dtype=torch.bool, device=corners.q[0].device)
        return ~some, some

    def runs(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Runs | None:
        """(start, stop), each (*leading or nothing, Tq), when query i sees exactly the keys start ≤ j < stop; else None."""
        return None

    def hides_nothing(self, Tq: int, Tk: int) -> bool:
        """Whether it is plain without looking at tensors that every query sees every key, as in a step of decoding."""
        return False

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        """Raise when this mask was not made for such a call."""

    def dense(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Tensor:
        """The mask as a boolean tensor that broadcasts to (..., heads, Tq, Tk)."""
        allowed = self.allowed(Grid(Tq, Tk, device=device))
        return allowed.expand(*allowed.shape[:-2], Tq, Tk)

    def blocks(self, Tq: int, Tk: int, block: int | tuple[int, int] = 128, device: torch.device | str | None = None) -> Tensor:
        """EMPTY (0), PARTIAL (1) or FULL (2) for each block, (..., ⌈Tq/block⌉, ⌈Tk/block⌉). Unsure is PARTIAL."""
        size = (block, block) if isinstance(block, int) else block
        every, some = self.judge(Corners(Tq, Tk, size, device))
        return torch.where(every, FULL, torch.where(some, PARTIAL, EMPTY)).to(torch.int8)

    def __and__(self, other: Mask) -> Mask:
        return And(self, _mask(other))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, _mask(other))

    def __invert__(self) -> Mask:
        return Not(self)


def _mask(x: object) -> Mask:
    if isinstance(x, Mask):
        return x
    if isinstance(x, Tensor):
        return Dense(x)
    raise OptionError(f"a mask combines with masks and boolean tensors, not with {type(x).__name__}")


def _whole(name: str, value: object, least: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{name} must be a whole number, got {value!r}")
    if least is not None and value < least:
        raise OptionError(f"{name} must be at least {least}, got {value}")
    return value


def _offset(name: str, offset: object) -> None:
    if offset is None or (isinstance(offset, int) and not isinstance(offset, bool)):
        return
    if not isinstance(offset, Tensor) or offset.is_floating_point() or offset.dtype == torch.bool or offset.ndim > 1:
        raise OptionError(f"{name}'s offset is a whole number or one whole number per sequence, got {offset!r}")


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


def _row(x: int | Tensor, Tq: int, device: torch.device | str | None) -> Tensor:
    """A number, or one per sequence, as (..., 1)."""
    return x[..., None] if isinstance(x, Tensor) and x.ndim else torch.as_tensor(x, device=device).reshape(1)


class _Band(Mask):
    """A rule on the distance key − position of query: low ≤ distance ≤ high (None: unbounded)."""

    offset: int | Tensor | None

    def band(self) -> tuple[int | None, int | None]:
        raise NotImplementedError

    def allowed(self, grid: Grid) -> Tensor:
        low, high = self.band()
        distance = grid.k - grid.position(self.offset)
        if low is None:
            return distance <= high if high is not None else torch.ones_like(distance, dtype=torch.bool)
        return distance >= low if high is None else (distance >= low) & (distance <= high)

    def judge(self, corners: Corners) -> tuple[Tensor, Tensor]:
        least, most = corners.distance(self.offset)
        low, high = self.band()
        every, some = torch.ones_like(least, dtype=torch.bool), torch.ones_like(least, dtype=torch.bool)
        if low is not None:
            every, some = every & (least >= low), some & (most >= low)
        if high is not None:
            every, some = every & (most <= high), some & (least <= high)
        return every, some

    def hides_nothing(self, Tq: int, Tk: int) -> bool:
        if isinstance(self.offset, Tensor) or not Tq:
            return False
        low, high = self.band()
        first = Tk - Tq if self.offset is None else self.offset
        return (low is None or first + Tq - 1 + low <= 0) and (high is None or first + high >= Tk - 1)

    def runs(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Runs | None:
        low, high = self.band()
        shift = _row(Tk - Tq if self.offset is None else self.offset, Tq, device)
        t = torch.arange(Tq, device=device) + shift
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
        _offset("Causal", self.offset)

    def band(self) -> tuple[int | None, int | None]:
        return None, 0


@dataclass(frozen=True, eq=False)
class Window(_Band):
    """Neighbours only: t − left ≤ s ≤ t + right; None leaves a side open."""

    left: int | None
    right: int | None = 0
    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            if getattr(self, name) is not None:
                _whole(f"Window's {name}", getattr(self, name), 0)
        _offset("Window", self.offset)

    @classmethod
    def centered(cls, K: int, offset: int | Tensor | None = None) -> Window:
        """The lecture's restricted attention: distance at most K/2, which is K + 1 keys for even K."""
        _whole("the window size K", K, 0)
        return cls(K // 2, K // 2, offset)

    def band(self) -> tuple[int | None, int | None]:
        return (None if self.left is None else -self.left), self.right


@dataclass(frozen=True, eq=False)
class Diagonal(_Band):
    """A token and itself; `~Diagonal()` is attention to all but oneself."""

    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        _offset("Diagonal", self.offset)

    def band(self) -> tuple[int | None, int | None]:
        return 0, 0


@dataclass(frozen=True, eq=False)
class Dilated(Mask):
    """Every step-th key counted from the query: distance divisible by `step`. `Dilated(4) & Window(64)` is a comb."""

    step: int
    offset: int | Tensor | None = None

    def __post_init__(self) -> None:
        _whole("Dilated's step", self.step, 1)
        _offset("Dilated", self.offset)

    def allowed(self, grid: Grid) -> Tensor:
        return (grid.k - grid.position(self.offset)) % self.step == 0

    def judge(self, corners: Corners) -> tuple[Tensor, Tensor]:
        least, most = corners.distance(self.offset)
        some = torch.div(most, self.step, rounding_mode="floor") * self.step >= least
        return some & ((least == most) | (self.step == 1)), some

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        _check_numbers("Dilated's offset", self.offset, leading, device)


class _FirstKeys(Mask):
    """The first n keys, n one number or one per sequence."""

    def count(self) -> int | Tensor:
        raise NotImplementedError

    def allowed(self, grid: Grid) -> Tensor:
        n = self.count()
        return grid.k < (grid.per_sequence(n) if isinstance(n, Tensor) else n)

    def judge(self, corners: Corners) -> tuple[Tensor, Tensor]:
        n = self.count()
        n = corners.per_sequence(n) if isinstance(n, Tensor) else n
        every, some = corners.k[1] < n, corners.k[0] < n
        rows = torch.ones_like(corners.q[0], dtype=torch.bool)
        return every & rows, some & rows

    def runs(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Runs | None:
        stop = _row(self.count(), Tq, device).clamp(0, Tk)
        stop = stop.expand(*stop.shape[:-1], Tq)
        return torch.zeros_like(stop), stop

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        name, n = type(self).__name__, self.count()
        _check_numbers(f"{name}'s counts", n, leading, device)
        if not isinstance(n, Tensor) and n > Tk:
            raise ShapeError(f"{name}({n}) was made for at least {n} keys and the call has {Tk}; give at most {Tk}")


def _counts(name: str, x: object) -> int | Tensor:
    if isinstance(x, Sequence) and not isinstance(x, str):
        x = torch.tensor(x)
    if isinstance(x, Tensor):
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise DtypeError(f"{name} counts keys, so it takes whole numbers, got {x.dtype}")
        return x
    return _whole(f"{name}'s count", x, 0)


@dataclass(frozen=True, eq=False)
class Padding(_FirstKeys):
    """Sequences of unequal length in one batch: of each, only the first `lengths` keys are real.

    `sound` promises that each has at least one and that all behind are finite. Then nothing has to be done lest they leak.
    """

    lengths: Tensor | Sequence[int] | int
    sound: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _counts("Padding", self.lengths))

    def count(self) -> int | Tensor:
        return self.lengths  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Prefix(_FirstKeys):
    """The first `length` keys are seen by all; `Causal() | Prefix(n)` is a prefix language model."""

    length: Tensor | Sequence[int] | int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", _counts("Prefix", self.length))

    def count(self) -> int | Tensor:
        return self.length  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Several documents packed in one row without padding: a token sees its own document. ids: (T,) or (batch, T)."""

    ids: Tensor
    key_ids: Tensor | None = None

    def __post_init__(self) -> None:
        for x in (self.ids, self.key_ids):
            if x is None and x is not self.ids:
                continue
            if not isinstance(x, Tensor) or x.ndim < 1 or x.is_floating_point() or x.is_complex():
                raise OptionError("Documents takes a tensor of whole numbers, one document id per token, shape (T,) or (batch, T)")

    @classmethod
    def of_lengths(cls, lengths: Sequence[int]) -> Documents:
        """Documents of these lengths, one after the other."""
        return cls(torch.repeat_interleave(torch.arange(len(lengths)), torch.as_tensor(lengths)))

    @property
    def _keys(self) -> Tensor:
        return self.ids if self.key_ids is None else self.key_ids

    def allowed(self, grid: Grid) -> Tensor:
        return grid.of_queries(self.ids) == grid.of_keys(self._keys)

    def judge(self, corners: Corners) -> tuple[Tensor, Tensor]:
        (a, b), (c, d) = corners.range_of(self.ids, 0), corners.range_of(self._keys, 1)
        return (a == b) & (c == d) & (a == c), (a <= d) & (c <= b)

    def runs(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Runs | None:
        keys = self._keys
        if keys.shape[-1] == 0 or torch.compiler.is_compiling() or not bool((keys.diff() >= 0).all()):
            return None  # a document's keys must stand together
        keys = keys.contiguous()
        ids = self.ids.expand(*keys.shape[:-1], -1).contiguous()
        return torch.searchsorted(keys, ids), torch.searchsorted(keys, ids, right=True)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        _check_numbers("Documents' ids", self.ids, leading, device, Tq)
        _check_numbers("Documents' key ids", self._keys, leading, device, Tk)


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """Any boolean tensor that broadcasts to (..., heads, Tq, Tk), True where attention is allowed."""

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

    def judge(self, corners: Corners) -> tuple[Tensor, Tensor]:
        x = self.tensor.expand(*self.tensor.shape[:-2], corners.Tq, corners.Tk)
        (a, b), (n, m) = corners.block, (corners.q[0].numel(), corners.k[0].numel())

        def parts(fill: bool) -> Tensor:
            pad = torch.nn.functional.pad(x, (0, m * b - corners.Tk, 0, n * a - corners.Tq), value=fill)
            return pad.unflatten(-1, (m, b)).unflatten(-3, (n, a))

        return parts(True).all(-1).all(-2), parts(False).any(-1).any(-2)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        if self.tensor.device != device:
            raise DeviceError(f"the mask is on {self.tensor.device} and the query on {device}; move one with .to()")
        check_pairs("the mask", self.tensor, (*leading, heads, Tq, Tk))


def check_pairs(name: str, x: Tensor, full: tuple[int, ...]) -> None:
    """x broadcasts to (*leading, heads, Tq, Tk)."""
    given = (1,) * (len(full) - x.ndim) + tuple(x.shape)
    if len(given) > len(full) or any(a not in (1, b) for a, b in zip(given, full, strict=True)):
        raise ShapeError(
            f"{name} of shape {tuple(x.shape)} does not broadcast to (…, heads, Tq, Tk) = {full}; "
            "each of its axes must be 1 or equal, counted from the right"
        )


class _Pair(Mask):
    """Two masks joined."""

    a: Mask
    b: Mask

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        self.a.check(Tq, Tk, heads, leading, device)
        self.b.check(Tq, Tk, heads, leading, device)

    def both_runs(self, Tq: int, Tk: int, device: torch.device | str | None) -> tuple[Runs, Runs] | None:
        a = self.a.runs(Tq, Tk, device)
        b = self.b.runs(Tq, Tk, device) if a is not None else None
        return None if a is None or b is None else (a, b)


@dataclass(frozen=True, eq=False)
class And(_Pair):
    """Allowed by both."""

    a: Mask
    b: Mask

    def allowed(self, grid: Grid) -> Tensor:
        return self.a.allowed(grid) & self.b.allowed(grid)

    def judge(self, corners: Corners) -> tuple[Tensor, Tensor]:
        (a, some_a), (b, some_b) = self.a.judge(corners), self.b.judge(corners)
        return a & b, some_a & some_b

    def hides_nothing(self, Tq: int, Tk: int) -> bool:
        return self.a.hides_nothing(Tq, Tk) and self.b.hides_nothing(Tq, Tk)

    def runs(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Runs | None:
        both = self.both_runs(Tq, Tk, device)
        if both is None:
            return None
        (a, b), (c, d) = both
        start, stop = torch.maximum(a, c), torch.minimum(b, d)
        return start, torch.maximum(start, stop)


@dataclass(frozen=True, eq=False)
class Or(_Pair):
    """Allowed by either."""

    a: Mask
    b: Mask

    def allowed(self, grid: Grid) -> Tensor:
        return self.a.allowed(grid) | self.b.allowed(grid)

    def judge(self, corners: Corners) -> tuple[Tensor, Tensor]:
        (a, some_a), (b, some_b) = self.a.judge(corners), self.b.judge(corners)
        return a | b, some_a | some_b

    def runs(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Runs | None:
        """Two runs that both begin at the first key are one run, as in a prefix language model."""
        both = self.both_runs(Tq, Tk, device)
        if both is None or torch.compiler.is_compiling():
            return None
        (a, b), (c, d) = both
        if not bool((a == 0).all()) or not bool((c == 0).all()):
            return None
        return torch.zeros_like(torch.maximum(b, d)), torch.maximum(b, d)


@dataclass(frozen=True, eq=False)
class Not(Mask):
    """Allowed where the other forbids."""

    a: Mask

    def allowed(self, grid: Grid) -> Tensor:
        return ~self.a.allowed(grid)

    def judge(self, corners: Corners) -> tuple[Tensor, Tensor]:
        every, some = self.a.judge(corners)
        return ~some, ~every

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        self.a.check(Tq, Tk, heads, leading, device)
