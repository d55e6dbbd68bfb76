"""Biases, added to the energies: ALiBi, relative buckets, relative vectors, tensors, functions of positions.

Values are at least float32: slope × distance needs more digits than bfloat16 has. −∞ masks; a finite value
never does, also not −1e9. NaN makes the rows NaN that may see it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, nn

from regard.arguments import integer
from regard.attention.devices import Movable, check_device
from regard.attention.grid import Grid
from regard.attention.kernel_hints import reset_inherited_hints
from regard.attention.mask import (
    check_broadcast,
    check_offset,
    check_per_sequence,
    only_tensors,
    tensor_signature,
)
from regard.attention.precision import compute_dtype, no_autocast, upcast
from regard.attention.tracing import broadcasts
from regard.errors import DtypeError, ShapeError


class Bias(Movable):
    """Base class of biases. A subclass must define `values`; the rest are hints for kernels."""

    finite = False  # never −∞, so it masks nothing
    uses_query = True  # depends on the query vectors, not only on positions

    def __init_subclass__(cls, **more: object) -> None:
        super().__init_subclass__(**more)
        hints = {"finite": False, "uses_query": True, "with_offset": Bias.with_offset}
        reset_inherited_hints(cls, ("values",), hints, {"signature": Bias.signature, "tensors": Bias.tensors})

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        """The bias for the pairs of `grid`, broadcasts to (..., heads, n, m). `query` has the grid's rows."""
        raise NotImplementedError

    def with_offset(self, offset: int | Tensor) -> Bias:
        """This bias with query 0 at position `offset`, one number or one per sequence.

        A bias that has its own offset keeps it.
        """
        return OffsetBias(self, offset)

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        """Raise if this bias does not fit the call."""

    def signature(self) -> Hashable | None:
        """A key for cached plans: everything that checks and planning read. None: plan every call."""
        return None

    def tensors(self) -> tuple[Tensor, ...] | None:
        """All tensors this bias reads beside the query; None: unknown."""
        return None


def _check_heads(name: str, bias_heads: int, heads: int) -> None:
    if not broadcasts(bias_heads, heads):
        raise ShapeError(
            f"this {name} was made for {bias_heads} heads and the call has {heads}; make it for {heads}"
        )


class ALiBi(Bias):
    """−m · |t − s| with a slope m per head (Press, Smith & Lewis 2022). Symmetric; the paper adds `Causal()`.

    >>> regard.ALiBi(4).slopes
    [0.25, 0.0625, 0.015625, 0.00390625]

    Slopes are 2^(−8/n), 2^(−16/n), … If the number of heads is not a power of two, they are the slopes of the
    next smaller power, then every other slope of the next larger, as in the authors' code.
    """

    finite = True
    uses_query = False

    def __init__(self, heads: int, offset: int | Tensor | None = None) -> None:
        self.heads = integer("heads", heads)
        self.offset = None if offset is None else check_offset("ALiBi", offset)
        self.slopes = _alibi_slopes(heads)

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        dtype = compute_dtype(query.dtype)
        distance = (grid.k - grid.position(self.offset)).abs().to(dtype)
        return -self._slope(grid, dtype) * distance

    def _slope(self, grid: Grid, dtype: torch.dtype) -> Tensor | float:
        """The slope of each head, computed from the head index so that Flex can trace it."""
        if self.heads == 1:
            return self.slopes[0]
        power = 2 ** math.floor(math.log2(self.heads))
        h = grid.head.to(dtype)
        return torch.exp2(torch.where(h < power, -8 * (h + 1) / power, -4 * (2 * (h - power) + 1) / power))

    def with_offset(self, offset: int | Tensor) -> Bias:
        if self.offset is not None:
            return self
        copied = copy.copy(self)
        copied.offset = check_offset("ALiBi", offset)
        return copied

    def signature(self) -> Hashable | None:
        return ALiBi, self.heads, tensor_signature(self.offset)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return (self.offset,) if isinstance(self.offset, Tensor) else ()

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        _check_heads("ALiBi", self.heads, heads)
        check_per_sequence("ALiBi's offset", self.offset, leading, query.device, option="bias")

    def __repr__(self) -> str:
        return f"ALiBi({self.heads})"


def _alibi_slopes(heads: int) -> list[float]:
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    extra = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(2 * power)][0::2]
    return slopes + extra[: heads - power]


class RelativeBuckets(nn.Module, Bias):
    """A learned bias per head and bucket of distances (T5, Raffel et al. 2020).

    Small distances have a bucket each; larger ones share logarithmic buckets.
    """

    finite = True
    uses_query = False

    def __init__(
        self, heads: int, *, buckets: int = 32, max_distance: int = 128, causal: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.buckets = integer("heads", heads), integer("buckets", buckets, 4, even=True)
        self.max_distance, self.causal = integer("max_distance", max_distance, buckets), causal
        self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of key − query."""
        if self.causal:
            start, n, distance = 0, self.buckets, (-distance).clamp(min=0)
        else:
            n = self.buckets // 2
            start, distance = (distance > 0).long() * n, distance.abs()
        near = n // 2
        far = (
            torch.log(distance.clamp(min=1).float() / near) / math.log(self.max_distance / near) * (n - near)
        )
        return start + torch.where(distance < near, distance, (near + far.long()).clamp(max=n - 1))

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        distance, weight = grid.k - grid.position(), self.weight.to(compute_dtype(query.dtype))
        if distance.ndim > 2:  # an offset per sequence: (..., 1, n, m)
            return grid.of_heads(weight[self.bucket(distance.squeeze(-3))].movedim(-1, -3))
        if distance.ndim < 2 or not grid.is_contiguous or not distance.numel():
            bias = weight[self.bucket(distance)]  # (n, m, heads), or (heads,) for one pair
            return grid.of_heads(bias.movedim(-1, -3) if bias.ndim > 1 else bias)
        # Diagonals are constant: look up each distance once, unfold into overlapping rows, last query first.
        n, m = distance.shape
        distances = torch.arange(n + m - 1, device=distance.device) + distance[-1, 0]
        rows = weight[self.bucket(distances)].T.unfold(-1, m, 1)  # (heads, n, m)
        return grid.of_heads(rows.flip(-2))

    def signature(self) -> Hashable | None:
        return RelativeBuckets, self.heads, tensor_signature(self.weight)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return tuple(self.parameters())

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        _check_heads("RelativeBuckets", self.heads, heads)

    def extra_repr(self) -> str:
        return f"{self.heads}, buckets={self.buckets}, max_distance={self.max_distance}, causal={self.causal}"


class RelativeVectors(nn.Module, Bias):
    """q·a_(s−t)/√d with a learned vector a for each distance, clipped to ± `clip`.

    The key term of Shaw, Uszkoreit & Vaswani 2018, eq. 4.
    """

    finite = True
    uses_query = True

    def __init__(self, dim: int, *, clip: int = 16, heads: int | None = None) -> None:
        super().__init__()
        self.dim, self.clip, self.heads = integer("dim", dim), integer("clip", clip), heads
        head = () if heads is None else (integer("heads", heads),)
        self.weight = nn.Parameter(torch.randn(*head, 2 * clip + 1, dim) / math.sqrt(dim))

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        table = self.weight.to(compute_dtype(query.dtype))
        if self.heads is not None:
            table = grid.of_heads(table)
        with no_autocast(query):
            scores = upcast(query) @ table.mT / math.sqrt(self.dim)  # (..., heads, n, 2·clip + 1)
        index = (grid.k - grid.position()).clamp(-self.clip, self.clip) + self.clip  # (n, m)
        return scores.gather(-1, index.expand(*scores.shape[:-2], *index.shape[-2:]))

    def signature(self) -> Hashable | None:
        return RelativeVectors, self.dim, self.heads, tensor_signature(self.weight)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return tuple(self.parameters())

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        if self.heads is not None:
            _check_heads("RelativeVectors", self.heads, heads)
        if query.shape[-1] != self.dim:
            raise ShapeError(
                f"this RelativeVectors takes queries of width {self.dim}, got {tuple(query.shape)}; "
                f"make it for {query.shape[-1]}"
            )

    def extra_repr(self) -> str:
        return f"{self.dim}, clip={self.clip}, heads={self.heads}"


class DenseBias(Bias):
    """A floating-point tensor that broadcasts to (..., heads, Tq, Tk); −∞ masks."""

    finite = False
    uses_query = False

    def __init__(self, tensor: Tensor) -> None:
        if tensor.dtype == torch.bool or not tensor.is_floating_point():
            raise DtypeError(f"a bias holds real numbers, got {tensor.dtype}; a boolean tensor is a mask=")
        self.tensor = tensor

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        return grid.of_pairs(self.tensor).to(compute_dtype(query.dtype))

    def with_offset(self, offset: int | Tensor) -> Bias:
        return self  # its rows are the queries, whatever their positions

    def signature(self) -> Hashable | None:
        return DenseBias, tensor_signature(self.tensor)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return (self.tensor,)

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        check_device("the bias", "bias", self.tensor, query.device)
        check_broadcast("the bias", self.tensor, (*leading, heads, query.shape[-2], Tk))

    def __repr__(self) -> str:
        return f"DenseBias{tuple(self.tensor.shape)}"


class PositionBias(Bias):
    """A function of query positions (n, 1) and key positions (1, m) that returns (n, m) or (heads, n, m)."""

    finite = False
    uses_query = False

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        t, s = grid.position(), grid.k
        if t.ndim > 2:  # an offset per sequence: call the function once for each sequence
            sequences = [self._evaluate(grid, positions, s) for positions in t.reshape(-1, *t.shape[-2:])]
            biases = [x if x.ndim > 2 else x[None] for x in sequences]  # (heads or 1, n, m) each
            stacked = torch.stack(biases) if biases else t.new_zeros(0, 1, 1, 1)
            return stacked.unflatten(0, t.shape[:-3]).to(compute_dtype(query.dtype))
        return self._evaluate(grid, t, s).to(compute_dtype(query.dtype))

    def _evaluate(self, grid: Grid, t: Tensor, s: Tensor) -> Tensor:
        bias = self.function(t, s)
        expected = (t.shape[-2], s.shape[-1])
        shape = tuple(bias.shape) if isinstance(bias, Tensor) else ()
        if len(shape) not in (2, 3) or not all(map(broadcasts, shape[-2:], expected)):
            raise ShapeError(
                f"the bias function returned {shape or type(bias).__name__} and must return {expected} "
                f"or (heads, *{expected})"
            )
        return grid.of_heads(bias) if len(shape) == 3 else bias

    def __repr__(self) -> str:
        return f"PositionBias({getattr(self.function, '__name__', type(self.function).__name__)})"


class OffsetBias(Bias):
    """A bias with query 0 at position `offset`."""

    def __init__(self, a: Bias, offset: int | Tensor) -> None:
        self.a, self.offset = a, check_offset(type(a).__name__, offset)
        self.finite, self.uses_query = a.finite, a.uses_query

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        return self.a.values(grid.at(self.offset), query)

    def tensors(self) -> tuple[Tensor, ...] | None:
        inner = self.a.tensors()
        return None if inner is None else inner + only_tensors(self.offset)

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        check_per_sequence("the offset", self.offset, leading, query.device, option="bias")
        self.a.check(query, Tk, heads, leading)

    def __repr__(self) -> str:
        return f"{self.a!r} at {self.offset!r}"
