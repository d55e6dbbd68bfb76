"""Random options of attention calls: masks, packed sequences, energies, biases, user-defined subclasses."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.bias import ALiBi, Bias, RelativeBuckets, RelativeVectors
from regard.attention.energy import Additive, Bilinear, Cosine, Distance, Dot, Energy, Match, ScaledDot
from regard.attention.grid import Grid
from regard.attention.mask import Dense, Mask
from regard.attention.normalize import Softmax
from regard.attention.packed import Packed
from regard.attention.position_masks import Causal, Diagonal, Dilated, Documents, Padding, Prefix, Window

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def copy_option(x: Any, dtype: torch.dtype, device: str) -> Any:
    """A copy of an option in another dtype and on another device."""
    if isinstance(x, nn.Module):
        return copy.deepcopy(x).to(device, dtype)
    if isinstance(x, Tensor):
        copied = x.detach().to(device, dtype) if x.is_floating_point() else x.detach().to(device).clone()
        return copied.requires_grad_(x.requires_grad)
    if isinstance(x, ClosureBias):
        return x.to(dtype, device)
    if isinstance(x, Mask | ALiBi) and vars(x):
        copied = copy.copy(x)
        for name, value in vars(x).items():
            object.__setattr__(copied, name, copy_option(value, dtype, device))
        return copied
    return x


class ClosureBias:
    """A bias with a parameter in its closure: a function of positions, or a subclass of Bias."""

    def __init__(self, parameter: Tensor, subclass: bool) -> None:
        self.parameter, self.subclass = parameter, subclass

    def to(self, dtype: torch.dtype, device: str) -> ClosureBias:
        return type(self)(self.parameter.detach().to(device, dtype).requires_grad_(), self.subclass)

    def option(self) -> Any:
        """The bias to pass to the attention function."""
        slope = self.parameter
        return _SlopedBias(slope) if self.subclass else lambda t, s: -slope * (t - s).abs()

    def __repr__(self) -> str:
        return "a subclass of Bias" if self.subclass else "a function of positions"


class _SlopedBias(Bias):
    def __init__(self, slope: Tensor) -> None:
        self.slope = slope

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        return -self.slope * (grid.k - grid.position()).abs()


class SkewedEnergy(ScaledDot):
    """A subclass with a different energy."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return super().__call__(query, key) + query[..., :1] * key[..., 0].unsqueeze(-2)


class FutureOnly(Causal):
    """A subclass that allows the future and not the past."""

    def allowed(self, grid: Grid) -> Tensor:
        return grid.k >= grid.position()


class SquaredSoftmax(Softmax):
    """A subclass whose rows do not sum to 1."""

    def rows(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, -1) ** 2


def draw_mask(rng: random.Random, leading: tuple[int, ...], H: int, Tq: int, Tk: int, depth: int = 1) -> Mask:
    """Any mask for a call of this shape, also combined and negated ones, also masks with empty rows."""
    kinds = ["causal", "window", "padding", "documents", "prefix", "dilated", "diagonal", "dense"]
    kind = rng.choice(kinds + (["and", "or", "not"] * 2 if depth else []))
    integer = rng.choice(INTEGERS)
    offset = rng.choice([None, None, None, 0, 2, -1])
    if rng.random() < 0.1:
        offset_dtype = rng.choice([torch.int32, torch.int64])
        offset = torch.randint(-2, max(3, Tk), leading, dtype=offset_dtype)  # as for the rows of a cache
    match kind:
        case "causal":
            return Causal(offset)
        case "window":
            return Window(rng.choice([None, 0, 1, 5, 40]), rng.choice([None, 0, 0, 1, 30]), offset)
        case "padding":
            return Padding(torch.randint(0, min(Tk, 120) + 1, rng.choice([leading, leading[1:]])).to(integer))
        case "documents":
            kind = rng.choice([*INTEGERS, torch.bool])
            ids = torch.randint(0, 2 if kind == torch.bool else 4, (max(Tq, Tk),))
            ids = (ids.sort().values if rng.random() < 0.7 else ids).to(kind)
            queries = ids[:Tq].expand(*leading, Tq) if rng.random() < 0.3 else ids[:Tq]
            documents = Documents(queries, None if Tq == Tk and rng.random() < 0.5 else ids[:Tk])
            return _packed(random.Random(f"packed {ids.tolist()}"), Tq, Tk, alone=depth > 0) or documents
        case "prefix":
            if rng.random() < 0.5:
                return Prefix(rng.randint(0, Tk))
            return Prefix(torch.randint(0, min(Tk, 120) + 1, leading).to(integer))
        case "dilated":
            return Dilated(rng.randint(1, 5), offset)
        case "diagonal":
            return Diagonal(offset)
        case "dense":
            shapes = [
                (Tq, Tk), (1, Tk), (H, Tq, Tk),
                (*leading, 1, Tq, Tk), (*leading, H, Tq, Tk), (*leading, 1, 1, Tk),
            ]  # fmt: skip
            shape = rng.choice(shapes)
            return Dense(torch.rand(shape) < rng.choice([0.1, 0.5, 0.9]))
    a = draw_mask(rng, leading, H, Tq, Tk, depth=0)
    if kind == "not":
        return ~a
    b = draw_mask(rng, leading, H, Tq, Tk, depth=0)
    return a & b if kind == "and" else a | b


def _packed(rng: random.Random, Tq: int, Tk: int, alone: bool) -> Packed | None:
    """In half of the cases up to four packed sequences, some of them empty, with a mask inside each.

    It has its own `rng`, so that all other cases are the same as before packed sequences existed. Key lengths
    that differ from query lengths are drawn only if the mask stands alone: combinations may be refused.
    """
    n, other = rng.randint(1, 4), Tq != Tk or rng.random() < 0.4
    if rng.random() < 0.5 or (other and not alone):
        return None
    queries, keys = ([0, *sorted(rng.randint(0, T) for _ in range(n - 1)), T] for T in (Tq, Tk))
    prefix = Causal() | Prefix([rng.randint(0, 5) for _ in range(n)])
    inside = rng.choice([None, Causal(), Causal(), Window(3, 1), prefix, Dilated(2), ~Diagonal()])
    return Packed(torch.tensor(queries, dtype=torch.int32), keys if other else None, inside)


def draw_energy(rng: random.Random, D: int, H: int) -> Energy | Callable[[Tensor, Tensor], Tensor]:
    """Any energy but the default for queries of width D."""
    heads = rng.choice([None, H])
    sign = random.Random(repr(rng.getstate())).choice([1, 1, -1, -1, 0])  # draws nothing from `rng`
    kinds: list[Callable[[], Any]] = [
        lambda: Dot(0.3 * sign), lambda: Cosine(4.0 * sign), lambda: Distance(), lambda: Match(),
        lambda: Bilinear(D, heads=heads, scale=0.5 * sign),
        lambda: Bilinear(D, rank=3, heads=heads, scale=0.5 * sign),
        lambda: Additive(D, hidden=6, heads=heads),
        lambda: Additive(D, hidden=6), lambda: lambda q, k: torch.sin(q @ k.mT),
    ]  # fmt: skip
    return rng.choice(kinds)()


def draw_bias(rng: random.Random, leading: tuple[int, ...], H: int, D: int, Tq: int, Tk: int) -> Any:
    """Any bias for a call of this shape: an object, a tensor or a function of positions."""
    kinds: list[Callable[[], Any]] = [
        lambda: ALiBi(H), lambda: RelativeBuckets(H, buckets=8, max_distance=20),
        lambda: RelativeVectors(D, clip=4), lambda: torch.randn(*leading, 1, Tq, Tk),
        lambda: torch.randn(H, Tq, Tk).requires_grad_(),
        lambda: torch.randn(1, Tk), lambda: lambda t, s: -0.01 * (t - s) ** 2,
    ]  # fmt: skip
    return rng.choice(kinds)()
