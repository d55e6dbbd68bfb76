"""Order: positions added to the inputs, turned into the queries and keys, or added to the energies as a bias.

Attention alone is blind to order (the lectures' "are you happy today"). Added to the inputs, (..., T, dim): `Sinusoidal`,
`Learned`, `Channel`. Turned into queries and keys: `Rotary`. Added to the energies: `ALiBi`, `RelativeBuckets`,
`RelativeVectors`, a dense tensor, or any function of two positions. Positions count from 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from regard.attention.grid import Grid
from regard.attention.mask import check_pairs
from regard.errors import DeviceError, DtypeError, OptionError, ShapeError


def _size(name: str, value: object, least: int = 1, even: bool = False) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (even and value % 2):
        raise OptionError(f"{name} must be {'an even' if even else 'a'} whole number of at least {least}, got {value!r}")
    return value


def _check_input(name: str, x: Tensor, dim: int | None) -> None:
    if x.ndim < 2 or not x.is_floating_point():
        raise ShapeError(f"{name} takes numbers of shape (…, T, dim), got {x.dtype} of shape {tuple(x.shape)}")
    if dim is not None and x.shape[-1] != dim:
        raise ShapeError(f"{name} was made for width {dim}, got {tuple(x.shape)}; make it for {x.shape[-1]}")


class Sinusoidal(nn.Module):
    """x + PE(t), PE(t)₂ₖ = sin(t/10000^(2k/dim)), PE(t)₂ₖ₊₁ = cos(…) (Vaswani et al. 2017, 3.5). Positions count from `first`."""

    def __init__(self, dim: int, *, base: float = 10000.0, first: int = 0) -> None:
        super().__init__()
        self.dim, self.base, self.first = _size("dim", dim, 2, even=True), base, first

    def table(
        self, T: int, offset: int = 0, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """PE of T positions, (T, dim)."""
        t = torch.arange(T, device=device, dtype=torch.float64) + (self.first + offset)
        rate = self.base ** (-torch.arange(0, self.dim, 2, device=device, dtype=torch.float64) / self.dim)
        angle = t[:, None] * rate
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2).to(dtype)

    def similarity(self, distances: int) -> Tensor:
        """PE(t)·PE(t + distance)/PE(t)·PE(t) for distances 0 … n−1: Σ cos(distance · rate)/(dim/2), the same for all t."""
        table = self.table(distances, dtype=torch.float64)
        return (
            (table @ table[0]) / (self.dim / 2) if self.first == 0 else Sinusoidal(self.dim, base=self.base).similarity(distances)
        )

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        _check_input("Sinusoidal", x, self.dim)
        return x + self.table(x.shape[-2], offset, x.device, x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base:g}, first={self.first}"


class Learned(nn.Module):
    """x + P[t] with a trained table P of maxlen × dim."""

    def __init__(self, maxlen: int, dim: int) -> None:
        super().__init__()
        self.maxlen, self.dim = _size("maxlen", maxlen), _size("dim", dim)
        self.weight = nn.Parameter(torch.randn(maxlen, dim) / math.sqrt(dim))

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        _check_input("Learned", x, self.dim)
        end = offset + x.shape[-2]
        if offset < 0 or end > self.maxlen:
            raise ShapeError(
                f"this learned table ends at position {self.maxlen - 1} and position {end - 1} was asked for; "
                f"make it with maxlen={end}, or use Sinusoidal, Rotary or ALiBi, which go on"
            )
        return x + self.weight[offset:end].to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.maxlen}, {self.dim}"


class Channel(nn.Module):
    """concat(x, t): the position as one more channel, (..., T, dim + 1). t counts from `first`, times `scale`."""

    def __init__(self, *, scale: float = 1.0, first: int = 0) -> None:
        super().__init__()
        self.scale, self.first = scale, first

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        _check_input("Channel", x, None)
        t = (torch.arange(x.shape[-2], device=x.device, dtype=x.dtype) + (offset + self.first)) * self.scale
        return torch.cat([x, t[:, None].expand(*x.shape[:-1], 1)], -1)

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, first={self.first}"


class Rotary(nn.Module):
    """Turn each pair of components by an angle t · base^(−2k/dim), so that q·k depends on the distance (Su et al. 2021).

    Takes queries or keys (..., heads, T, dim). Pairs are neighbours (2k, 2k+1) as in the paper; `halves=True` pairs k with
    k + dim/2 as GPT-NeoX does. `fraction` below 1 turns only the first part of the components.
    """

    def __init__(self, dim: int, *, base: float = 10000.0, halves: bool = False, fraction: float = 1.0) -> None:
        super().__init__()
        self.dim, self.base, self.halves, self.fraction = _size("dim", dim, 2, even=True), base, halves, fraction
        if not 0 < fraction <= 1:
            raise OptionError(f"fraction must be above 0 and at most 1, got {fraction!r}")
        self.turned = int(dim * fraction) // 2 * 2

    def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        _check_input("Rotary", x, self.dim)
        n = self.turned
        t = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)
        t = t + (offset if isinstance(offset, int) else offset.to(torch.float64)[..., None, None])  # (batch, 1, T)
        rate = self.base ** (-torch.arange(0, n, 2, device=x.device, dtype=torch.float64) / n)
        angle = t[..., None] * rate
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = (x[..., : n // 2], x[..., n // 2 : n]) if self.halves else (x[..., 0:n:2], x[..., 1:n:2])
        turned = (a * cos - b * sin, a * sin + b * cos)
        y = torch.cat(turned, -1) if self.halves else torch.stack(turned, -1).flatten(-2)
        return y if n == self.dim else torch.cat([y, x[..., n:]], -1)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base:g}, halves={self.halves}, fraction={self.fraction:g}"


class Bias:
    """The parent of everything added to the energies."""

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        """What to add for the pairs of `grid`; broadcasts to (..., heads, n, m). `query` holds the same rows as `grid`."""
        raise NotImplementedError

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        """Raise when this bias was not made for such a call."""

    @property
    def uses_query(self) -> bool:
        """Whether the values depend on the query vectors and not on positions alone."""
        return False


def _check_heads(name: str, made: int, heads: int) -> None:
    if made not in (1, heads):
        raise ShapeError(f"this {name} was made for {made} heads and the call has {heads}; make it for {heads}")


class ALiBi(Bias):
    """−m · |t − s| with a slope m per head (Press, Smith & Lewis 2022). Symmetric; with `Causal()` it is the paper's.

    Slopes are 2^(−8/n), 2^(−16/n), …; when the number of heads is no power of two, those of the next smaller power and then
    every other one of the next larger, as published.
    """

    def __init__(self, heads: int, offset: int | Tensor | None = None) -> None:
        self.heads = _size("heads", heads)
        self.offset = offset
        self.slopes = _alibi_slopes(heads)

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        exact = torch.float64 if query.dtype == torch.float64 else torch.float32  # bfloat16 cannot count beyond 256
        distance = (grid.k - grid.position(self.offset)).abs().to(exact)
        return (-self._slope(grid, exact) * distance).to(query.dtype)

    def _slope(self, grid: Grid, dtype: torch.dtype) -> Tensor | float:
        """The slope of each head, computed from its number so that Flex can trace it."""
        if self.heads == 1:
            return self.slopes[0]
        power = 2 ** math.floor(math.log2(self.heads))
        h = grid.head
        return torch.exp2(torch.where(h < power, -8 * (h + 1) / power, -4 * (2 * (h - power) + 1) / power).to(dtype))

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        _check_heads("ALiBi", self.heads, heads)

    def __repr__(self) -> str:
        return f"ALiBi({self.heads})"


def _alibi_slopes(heads: int) -> list[float]:
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    extra = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(2 * power)][0::2]
    return slopes + extra[: heads - power]


class RelativeBuckets(nn.Module, Bias):
    """One learned number per head and bucket of distances (T5, Raffel et al. 2020): near distances exact, far ones logarithmic."""

    def __init__(self, heads: int, *, buckets: int = 32, max_distance: int = 128, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.buckets = _size("heads", heads), _size("buckets", buckets, 4, even=True)
        self.max_distance, self.causal = _size("max_distance", max_distance, buckets), causal
        self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of key − query."""
        if self.causal:
            start, n, distance = 0, self.buckets, (-distance).clamp(min=0)
        else:
            n = self.buckets // 2
            start, distance = (distance > 0).long() * n, distance.abs()
        exact = n // 2
        far = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact) * (n - exact)
        return start + torch.where(distance < exact, distance, (exact + far.long()).clamp(max=n - 1))

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        distance = grid.k - grid.position()
        if distance.ndim < 2 or not grid.is_span or not distance.numel():
            found = self.weight[self.bucket(distance)]  # (n, m, heads), or (heads,) for one pair
            return grid.of_heads(found.movedim(-1, -3) if found.ndim > 1 else found).to(query.dtype)
        # Along a diagonal all is alike: one number per distance, laid out as overlapping rows, the last query first.
        n, m = distance.shape
        line = torch.arange(n + m - 1, device=distance.device) + distance[-1, 0]
        rows = self.weight[self.bucket(line)].T.unfold(-1, m, 1)  # (heads, n, m)
        return grid.of_heads(rows.flip(-2)).to(query.dtype)

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        _check_heads("RelativeBuckets", self.heads, heads)

    def extra_repr(self) -> str:
        return f"{self.heads}, buckets={self.buckets}, max_distance={self.max_distance}, causal={self.causal}"


class RelativeVectors(nn.Module, Bias):
    """q·a_(s−t)/√d with a learned vector a per clipped distance (Shaw, Uszkoreit & Vaswani 2018, eq. 4, keys' part)."""

    def __init__(self, dim: int, *, clip: int = 16, heads: int | None = None) -> None:
        super().__init__()
        self.dim, self.clip, self.heads = _size("dim", dim), _size("clip", clip), heads
        head = () if heads is None else (_size("heads", heads),)
        self.weight = nn.Parameter(torch.randn(*head, 2 * clip + 1, dim) / math.sqrt(dim))

    @property
    def uses_query(self) -> bool:
        return True

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        table = self.weight.to(query.dtype)
        if self.heads is not None:
            table = grid.of_heads(table)
        fit = query @ table.transpose(-1, -2) / math.sqrt(self.dim)  # (..., heads, n, 2·clip + 1)
        at = (grid.k - grid.position()).clamp(-self.clip, self.clip) + self.clip
        return fit.gather(-1, at.expand(*fit.shape[:-2], *at.shape[-2:]))

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        if self.heads is not None:
            _check_heads("RelativeVectors", self.heads, heads)
        if query.shape[-1] != self.dim:
            raise ShapeError(
                f"this RelativeVectors takes queries of width {self.dim}, got {tuple(query.shape)}; make it for {query.shape[-1]}"
            )

    def extra_repr(self) -> str:
        return f"{self.dim}, clip={self.clip}, heads={self.heads}"


class DenseBias(Bias):
    """Any tensor of numbers that broadcasts to (..., heads, Tq, Tk); −∞ counts as masked."""

    def __init__(self, tensor: Tensor) -> None:
        if tensor.dtype == torch.bool or not tensor.is_floating_point():
            raise DtypeError(f"a bias holds real numbers, got {tensor.dtype}; a boolean tensor is a mask=")
        self.tensor = tensor

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        return grid.of_pairs(self.tensor).to(query.dtype)

    def check(self, query: Tensor, Tk: int, heads: int, leading: Sequence[int]) -> None:
        if self.tensor.device != query.device:
            raise DeviceError(f"the bias is on {self.tensor.device} and the query on {query.device}; move one with .to()")
        check_pairs("the bias", self.tensor, (*leading, heads, query.shape[-2], Tk))

    def __repr__(self) -> str:
        return f"DenseBias{tuple(self.tensor.shape)}"


class PositionBias(Bias):
    """Any function of (position of query, position of key), given as (n, 1) and (1, m), that gives (n, m) or (heads, n, m)."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        t, s = grid.position(), grid.k
        found = self.function(t, s)
        want = (t.shape[-2], s.shape[-1])
        given = tuple(found.shape) if isinstance(found, Tensor) else ()
        if len(given) not in (2, 3) or any(a not in (1, b) for a, b in zip(given[-2:], want, strict=True)):
            raise ShapeError(f"the bias function gave {given or type(found).__name__} and must give {want} or (heads, *{want})")
        found = grid.of_heads(found) if len(given) == 3 else found
        return found.to(query.dtype)

    def __repr__(self) -> str:
        return f"PositionBias({getattr(self.function, '__name__', type(self.function).__name__)})"
