"""Position encodings of inputs, and rotary embeddings of queries and keys.

Attention alone ignores order (Enevoldsen's "are you happy today"). `Sinusoidal` and `Learned` are added to
the inputs, (..., T, dim), `Channel` is concatenated, `Rotary` rotates queries and keys. Biases of energies
are in bias.py. Positions count from 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.arguments import MAX_SIZE, flag, integer, number
from regard.attention.mask import check_offset, check_per_sequence
from regard.errors import OptionError, ShapeError


def _check_input(name: str, x: Tensor, dim: int | None) -> None:
    if x.ndim < 2 or not x.is_floating_point():
        raise ShapeError(
            f"{name} takes numbers of shape (…, T, dim), got {x.dtype} of shape {tuple(x.shape)}"
        )
    if dim is not None and x.shape[-1] != dim:
        raise ShapeError(f"{name} was made for width {dim}, got {tuple(x.shape)}; make it for {x.shape[-1]}")


class Sinusoidal(nn.Module):
    """x + PE(t), PE(t)₂ₖ = sin(t/10000^(2k/dim)), PE(t)₂ₖ₊₁ = cos(…) (Vaswani et al. 2017, 3.5).

    >>> regard.Sinusoidal(4)(torch.zeros(1, 2, 4))[0, 0].tolist()
    [0.0, 1.0, 0.0, 1.0]

    Positions count from `first`.
    """

    def __init__(self, dim: int, *, base: float = 10000.0, first: int = 0) -> None:
        super().__init__()
        self.dim, self.first = integer("dim", dim, 2, even=True), integer("first", first, -MAX_SIZE)
        self.base = number("base", base, 1e-9)

    def table(
        self,
        T: int,
        offset: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """PE of T positions from `offset`, (T, dim)."""
        t = torch.arange(T, device=device, dtype=torch.float64) + (self.first + offset)
        rate = self.base ** (-torch.arange(0, self.dim, 2, device=device, dtype=torch.float64) / self.dim)
        angle = t[:, None] * rate
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2).to(dtype)

    def similarity(self, distances: int) -> Tensor:
        """PE(t)·PE(t + d) / PE(t)·PE(t) = Σ cos(d · rate)/(dim/2) for d = 0 … distances − 1 and any t."""
        table = self.table(distances, dtype=torch.float64)
        return (
            (table @ table[0]) / (self.dim / 2)
            if self.first == 0
            else Sinusoidal(self.dim, base=self.base).similarity(distances)
        )

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        _check_input("Sinusoidal", x, self.dim)
        return x + self.table(x.shape[-2], offset, x.device, x.dtype)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base:g}, first={self.first}"


class Learned(nn.Module):
    """x + P[t] with a learned table P, (maxlen, dim)."""

    def __init__(self, maxlen: int, dim: int) -> None:
        super().__init__()
        self.maxlen, self.dim = integer("maxlen", maxlen), integer("dim", dim)
        self.weight = nn.Parameter(torch.randn(maxlen, dim) / math.sqrt(dim))

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        _check_input("Learned", x, self.dim)
        end = offset + x.shape[-2]
        if offset < 0 or end > self.maxlen:
            raise ShapeError(
                f"this learned table ends at position {self.maxlen - 1} and position {end - 1} was "
                f"requested; make it with maxlen={end}, or use Sinusoidal, Rotary or ALiBi, "
                "which have no limit"
            )
        return x + self.weight[offset:end].to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.maxlen}, {self.dim}"


class Channel(nn.Module):
    """concat(x, t): the position t, from `first`, times `scale`, as an extra feature: (..., T, dim + 1)."""

    def __init__(self, *, scale: float = 1.0, first: int = 0) -> None:
        super().__init__()
        self.scale, self.first = number("scale", scale), integer("first", first, -MAX_SIZE)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        _check_input("Channel", x, None)
        t = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64) + (offset + self.first)
        t = (t * self.scale).to(x.dtype)  # rounded once: float16 itself ends at position 65504
        return torch.cat([x, t[:, None].expand(*x.shape[:-1], 1)], -1)

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, first={self.first}"


class Rotary(nn.Module):
    """Rotary embeddings (Su et al. 2021): rotate pairs of components by t · base^(−2k/dim).

    >>> rotary, x = regard.Rotary(8), torch.randn(1, 1, 4, 8)
    >>> regard.attend(rotary(x), rotary(x), x).shape
    torch.Size([1, 1, 4, 8])

    q·k then depends on the distance of their positions. Takes queries or keys, (..., heads, T, dim). Pairs
    are (2k, 2k+1) as in the paper; `halves=True` pairs k with k + dim/2 as in GPT-NeoX. `fraction` below 1
    rotates only the first part of the components.
    """

    def __init__(
        self, dim: int, *, base: float = 10000.0, halves: bool = False, fraction: float = 1.0
    ) -> None:
        super().__init__()
        self.dim, self.base = integer("dim", dim, 2, even=True), number("base", base, 1e-9)
        self.halves, self.fraction = flag("halves", halves), number("fraction", fraction)
        if not 0 < fraction <= 1:
            raise OptionError(f"fraction must be above 0 and at most 1, got {fraction!r}")
        self.rotated_dim = int(dim * fraction) // 2 * 2

    def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
        _check_input("Rotary", x, self.dim)
        offset = check_offset("Rotary", offset)
        check_per_sequence("Rotary's offset", offset, x.shape[:-3], x.device, option="offset")
        n = self.rotated_dim
        t = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)
        # (T,), or (batch, 1, T) with an offset per sequence
        t = t + (offset if isinstance(offset, int) else offset.to(torch.float64)[..., None, None])
        rate = self.base ** (-torch.arange(0, n, 2, device=x.device, dtype=torch.float64) / n)
        angle = t[..., None] * rate
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = (x[..., : n // 2], x[..., n // 2 : n]) if self.halves else (x[..., 0:n:2], x[..., 1:n:2])
        rotated = (a * cos - b * sin, a * sin + b * cos)
        y = torch.cat(rotated, -1) if self.halves else torch.stack(rotated, -1).flatten(-2)
        return y if n == self.dim else torch.cat([y, x[..., n:]], -1)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base:g}, halves={self.halves}, fraction={self.fraction:g}"
