"""Masks: which keys a query may attend to. True means allowed, as in the boolean masks of torch's SDPA.

A mask is a rule, not a T×T tensor. Kernels read it as ranges (`key_ranges`, if every query sees one
contiguous range of keys: causal, windows, padding, packed documents and their intersections) or as full,
partial and empty blocks (`blocks`); neither builds the T×T matrix. Masks combine with `&`, `|` and `~`, also
with boolean tensors.

Positions are aligned at the end: the last query is at the last key, so a decoder with a cache needs no
offset. `offset=` sets the position of query 0; torch's `is_causal` is `Causal(offset=0)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.devices import Movable, check_device
from regard.attention.grid import BlockGrid, Grid
from regard.attention.kernel_hints import reset_inherited_hints
from regard.attention.tracing import broadcasts, statically_true
from regard.errors import DtypeError, OptionError, ShapeError

EMPTY, PARTIAL, FULL = 0, 1, 2
HINTS = (
    "block_bounds",
    "key_ranges",
    "allows_all",
    "covers",
    "allows_diagonal",
    "static_band",
    "density",
    "prefix_rows",
    "with_offset",
)
Ranges = tuple[Tensor, Tensor]  # (start, stop)


class Mask(Movable):
    """Base class of masks. A subclass must define `allowed`; the other methods are hints for faster kernels.

    Only `allowed`, `key_ranges` and `block_bounds` may read the values of tensors. Where a hint cannot be
    sure, it returns False or None.
    """

    prefix_rows = False  # every query sees a prefix of the keys: from the first up to some key

    def __init_subclass__(cls, **more: object) -> None:
        super().__init_subclass__(**more)
        hints = {name: getattr(Mask, name) for name in HINTS}
        reset_inherited_hints(
            cls, ("allowed",), hints, {"signature": Mask.signature, "tensors": Mask.tensors}
        )

    def allowed(self, grid: Grid) -> Tensor:
        """True where the query may see the key, for the pairs of `grid`; broadcasts to (..., heads, n, m)."""
        raise NotImplementedError

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        """Whether all pairs of each block are allowed, and whether any may be.

        Both are (..., blocks of queries, blocks of keys). The default is (False, True): unknown.
        """
        some = torch.ones(
            blocks.q[0].shape[0], blocks.k[0].shape[1], dtype=torch.bool, device=blocks.q[0].device
        )
        return ~some, some

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        """(start, stop), each (*leading, Tq) or (Tq,), if query i sees exactly the keys start ≤ j < stop."""
        return None

    def allows_all(self, Tq: int, Tk: int) -> bool:
        """Whether every query sees every key, as in a decoding step."""
        return False

    def covers(self, Tq: int, Tk: int) -> bool:
        """Whether every query sees some key, and every key is seen by some query or known to be finite."""
        return statically_true(Tq == Tk) and self.allows_diagonal(Tq, Tk)

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        """Whether query i sees key i, for all i."""
        return False

    def density(self, Tq: int, Tk: int) -> float:
        """The approximate fraction of pairs that are allowed; used to choose a kernel."""
        return 1.0

    def static_band(self, Tq: int, Tk: int) -> tuple[int, int] | None:
        """(low, high) if exactly the pairs with low ≤ key − query ≤ high are allowed in all sequences."""
        return None

    def signature(self) -> Hashable | None:
        """A key for cached plans: everything that checks and planning read. None: plan every call."""
        return None

    def tensors(self) -> tuple[Tensor, ...] | None:
        """All tensors this mask reads; None: unknown."""
        return None

    def with_offset(self, offset: int | Tensor) -> Mask:
        """This mask with query 0 at position `offset`, one number or one per sequence.

        A mask that has its own offset keeps it.
        """
        return OffsetMask(self, offset)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        """Raise if this mask does not fit the call."""

    def dense(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Tensor:
        """The mask as a boolean tensor that broadcasts to (..., heads, Tq, Tk)."""
        allowed = self.allowed(Grid(Tq, Tk, device=device))
        return allowed.expand(*allowed.shape[:-2], Tq, Tk)

    def blocks(
        self, Tq: int, Tk: int, block: int | tuple[int, int] = 128, device: torch.device | str | None = None
    ) -> Tensor:
        """EMPTY (0), PARTIAL (1) or FULL (2) for each block, (..., ⌈Tq/block⌉, ⌈Tk/block⌉)."""
        size = (block, block) if isinstance(block, int) else block
        every, some = self.block_bounds(BlockGrid(Tq, Tk, size, device))
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


def tensor_signature(x: object) -> Hashable:
    """The part of a signature for a number or a tensor; never the values of a tensor."""
    return (x.shape, x.dtype, x.device, x.requires_grad, type(x)) if isinstance(x, Tensor) else x


def check_offset(name: str, offset: object) -> int | Tensor:
    """The offset as an int or an int64 tensor; narrower types would overflow in sums."""
    if isinstance(offset, int) and not isinstance(offset, bool):
        return offset
    if (
        not isinstance(offset, Tensor)
        or offset.is_floating_point()
        or offset.is_complex()
        or offset.dtype == torch.bool
    ):
        raise OptionError(f"{name}'s offset is an integer or one integer per sequence, got {offset!r}")
    return offset.to(torch.int64)


def only_tensors(*values: object) -> tuple[Tensor, ...]:
    return tuple(x for x in values if isinstance(x, Tensor))


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A boolean tensor that broadcasts to (..., heads, Tq, Tk), True where attention is allowed.

    A tensor with two axes is (Tq, Tk).
    """

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

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        x = self.tensor.expand(*self.tensor.shape[:-2], blocks.Tq, blocks.Tk)
        (a, b), (n, m) = blocks.size, (blocks.q[0].numel(), blocks.k[0].numel())

        def split(fill: bool) -> Tensor:
            padded = torch.nn.functional.pad(x, (0, m * b - blocks.Tk, 0, n * a - blocks.Tq), value=fill)
            return padded.unflatten(-1, (m, b)).unflatten(-3, (n, a))  # (..., n, a, m, b)

        return split(True).all(-1).all(-2), split(False).any(-1).any(-2)

    def with_offset(self, offset: int | Tensor) -> Mask:
        return self  # its rows are the queries, whatever their positions

    def signature(self) -> Hashable | None:
        return Dense, tensor_signature(self.tensor)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return (self.tensor,)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        check_device("the mask", "mask", self.tensor, device)
        check_broadcast("the mask", self.tensor, (*leading, heads, Tq, Tk))


def check_per_sequence(
    name: str,
    x: object,
    leading: Sequence[int],
    device: torch.device,
    length: int | None = None,
    option: str = "mask",
) -> None:
    """Raise if x is a tensor that is not one number per sequence (and per position, if `length` is given)."""
    if not isinstance(x, Tensor):
        return
    check_device(name, option, x, device)
    shape = tuple(x.shape)
    if length is not None:
        if shape[-1] != length:
            raise ShapeError(
                f"{name} was made for {shape[-1]} positions and the call has {length}; make it for {length}"
            )
        shape = shape[:-1]
    given = (1,) * (len(leading) - len(shape)) + shape
    if len(given) > len(leading) or not all(map(broadcasts, given, leading)):
        raise ShapeError(
            f"{name} has one entry for each of {shape} sequences and the batch is {tuple(leading)}; "
            f"give {tuple(leading)} entries"
        )


def check_broadcast(name: str, x: Tensor, full: tuple[int, ...]) -> None:
    """Raise if x does not broadcast to `full`, (*leading, heads, Tq, Tk)."""
    given = (1,) * (len(full) - x.ndim) + tuple(x.shape)
    if len(given) > len(full) or not all(map(broadcasts, given, full)):
        fix = "each of its axes must be 1 or equal, counted from the right"
        if name == "the mask" and x.ndim == 2 and tuple(x.shape) == (*full[:-3], full[-1]):
            row = "for one row of keys per sequence, (batch, Tk)"
            fix = f"{row}, write mask[:, None, None, :] or Padding(lengths)"
        raise ShapeError(
            f"{name} of shape {tuple(x.shape)} does not broadcast to (…, heads, Tq, Tk) = {full}; {fix}"
        )


class _Pair(Mask):
    """Base class of And and Or."""

    a: Mask
    b: Mask

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        self.a.check(Tq, Tk, heads, leading, device)
        self.b.check(Tq, Tk, heads, leading, device)

    def both_ranges(
        self, Tq: int, Tk: int, device: torch.device | str | None
    ) -> tuple[Ranges, Ranges] | None:
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

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        (a, some_a), (b, some_b) = self.a.block_bounds(blocks), self.b.block_bounds(blocks)
        return a & b, some_a & some_b

    def allows_all(self, Tq: int, Tk: int) -> bool:
        return self.a.allows_all(Tq, Tk) and self.b.allows_all(Tq, Tk)

    def covers(self, Tq: int, Tk: int) -> bool:
        """Two prefixes that are not empty share the first key."""
        return super().covers(Tq, Tk) or (
            self.prefix_rows and self.a.covers(Tq, Tk) and self.b.covers(Tq, Tk)
        )

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return self.a.allows_diagonal(Tq, Tk) and self.b.allows_diagonal(Tq, Tk)

    def density(self, Tq: int, Tk: int) -> float:
        return min(self.a.density(Tq, Tk), self.b.density(Tq, Tk))

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        both = self.both_ranges(Tq, Tk, device)
        if both is None:
            return None
        (a, b), (c, d) = both
        start, stop = torch.maximum(a, c), torch.minimum(b, d)
        return start, torch.maximum(start, stop)

    def with_offset(self, offset: int | Tensor) -> Mask:
        return And(self.a.with_offset(offset), self.b.with_offset(offset))

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

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        (a, some_a), (b, some_b) = self.a.block_bounds(blocks), self.b.block_bounds(blocks)
        return a | b, some_a | some_b

    def allows_all(self, Tq: int, Tk: int) -> bool:
        return self.a.allows_all(Tq, Tk) or self.b.allows_all(Tq, Tk)

    def covers(self, Tq: int, Tk: int) -> bool:
        return self.a.covers(Tq, Tk) or self.b.covers(Tq, Tk)

    def allows_diagonal(self, Tq: int, Tk: int) -> bool:
        return self.a.allows_diagonal(Tq, Tk) or self.b.allows_diagonal(Tq, Tk)

    def density(self, Tq: int, Tk: int) -> float:
        return min(1.0, self.a.density(Tq, Tk) + self.b.density(Tq, Tk))

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        """The union of two prefixes is a prefix, as in a prefix language model."""
        if not (self.a.prefix_rows and self.b.prefix_rows):
            return None
        both = self.both_ranges(Tq, Tk, device)
        if both is None:
            return None
        stop = torch.maximum(both[0][1], both[1][1])
        return torch.zeros_like(stop), stop

    def with_offset(self, offset: int | Tensor) -> Mask:
        return Or(self.a.with_offset(offset), self.b.with_offset(offset))

    def signature(self) -> Hashable | None:
        return self.both_signatures()

    def tensors(self) -> tuple[Tensor, ...] | None:
        return self.both_tensors()


@dataclass(frozen=True, eq=False)
class Not(Mask):
    """Allowed where the other mask is not."""

    a: Mask

    def allowed(self, grid: Grid) -> Tensor:
        return ~self.a.allowed(grid)

    def block_bounds(self, blocks: BlockGrid) -> tuple[Tensor, Tensor]:
        every, some = self.a.block_bounds(blocks)
        return ~some, ~every

    def with_offset(self, offset: int | Tensor) -> Mask:
        return Not(self.a.with_offset(offset))

    def key_ranges(self, Tq: int, Tk: int, device: torch.device | str | None = None) -> Ranges | None:
        """The complement of a prefix is one range: `~Prefix(n)` masks padding on the left."""
        ranges = self.a.key_ranges(Tq, Tk, device) if self.a.prefix_rows else None
        return None if ranges is None else (ranges[1], torch.full_like(ranges[1], Tk))

    def signature(self) -> Hashable | None:
        a = self.a.signature()
        return None if a is None else (Not, a)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return self.a.tensors()

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        self.a.check(Tq, Tk, heads, leading, device)


@dataclass(frozen=True, eq=False)
class OffsetMask(Mask):
    """A user-defined mask with query 0 at position `offset`; its `allowed` must use `grid.position()`."""

    a: Mask
    offset: int | Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", check_offset(type(self.a).__name__, self.offset))

    def allowed(self, grid: Grid) -> Tensor:
        return self.a.allowed(grid.at(self.offset))

    def tensors(self) -> tuple[Tensor, ...] | None:
        inner = self.a.tensors()
        return None if inner is None else inner + only_tensors(self.offset)

    def check(self, Tq: int, Tk: int, heads: int, leading: Sequence[int], device: torch.device) -> None:
        check_per_sequence("the offset", self.offset, leading, device)
        self.a.check(Tq, Tk, heads, leading, device)
