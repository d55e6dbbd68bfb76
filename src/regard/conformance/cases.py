"""Attention calls drawn at random, by class of input. The class and a seed determine a case.

Numbers are drawn in float64 and rounded to the dtype of the case, so that the truth is computed from exactly the same inputs.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.bias import ALiBi, Bias, RelativeBuckets, RelativeVectors
from regard.attention.energy import Additive, Bilinear, Cosine, Distance, Dot, Energy, Match, ScaledDot
from regard.attention.grid import Grid
from regard.attention.mask import Dense, Mask
from regard.attention.normalize import Entmax, Hard, Raw, Sigmoid, Softmax, Sparsemax
from regard.attention.packed import Packed
from regard.attention.position_masks import Causal, Diagonal, Dilated, Documents, Padding, Prefix, Window

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass
class Case:
    """One call: the numbers, the memory layout of query, key and value, the options, and how the call is run (`action`)."""

    name: str
    seed: int
    dtype: torch.dtype
    leaves: dict[str, Tensor]  # float64
    layouts: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    action: str = "run"

    def make(
        self, dtype: torch.dtype, device: str = "cpu"
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
        """Leaf tensors that require a gradient, query, key and value made from them in their layouts, and the options."""
        leaves = {n: x.to(device, dtype).requires_grad_() for n, x in self.leaves.items()}
        tensors = {n: LAYOUTS[self.layouts.get(n, "contiguous")](x) for n, x in leaves.items()}
        return leaves, tensors, {n: moved(x, dtype, device) for n, x in self.options.items()}

    def learned(self, options: dict[str, Any]) -> dict[str, Tensor]:
        """Tensors in the options that require a gradient, by name."""
        found: dict[str, Tensor] = {}
        for name, x in options.items():
            if isinstance(x, nn.Module):
                found |= {f"{name}.{n}": p for n, p in x.named_parameters()}
            elif isinstance(x, Tensor) and x.requires_grad:
                found[name] = x
            elif isinstance(x, _Closure):
                found[f"{name}.closure"] = x.parameter
        return found

    def __str__(self) -> str:
        shapes = ", ".join(
            f"{n} {tuple(x.shape)} {self.layouts.get(n, '')}".rstrip() for n, x in self.leaves.items()
        )
        options = ", ".join(f"{n}={x!r}".replace("\n", " ")[:90] for n, x in self.options.items())
        return f"{self.name} {self.seed}: {str(self.dtype).removeprefix('torch.')} {shapes}; {options or 'no options'}; {self.action}"


def case(name: str, seed: int) -> Case:
    """Draw the case of a class with this seed."""
    if name not in CLASSES:
        raise ValueError(f"there is no class {name!r}; the classes are {'; '.join(CLASSES)}")
    state = torch.random.get_rng_state()
    rng = random.Random(f"{name} {seed}")
    torch.manual_seed(rng.randrange(2**31))
    try:
        found = CLASSES[name](rng)
    finally:
        torch.random.set_rng_state(state)
    found.name, found.seed = name, seed
    if isinstance(mask := found.options.get("mask"), Packed) and mask.cu_seqlens_k is not None:
        for option in ("bias", "gate"):  # a rule on positions of the whole row is refused there
            if not isinstance(found.options.get(option), Tensor):
                found.options.pop(option, None)
    found.leaves = {n: x.to(found.dtype).double() for n, x in found.leaves.items()}
    for n, x in found.options.items():  # −1e9 in float16 is −∞, for the truth as well
        if isinstance(x, Tensor) and x.is_floating_point():
            found.options[n] = x.detach().to(found.dtype).double().requires_grad_(x.requires_grad)
    return found


def moved(x: Any, dtype: torch.dtype, device: str) -> Any:
    """A copy of an option in another dtype and on another device."""
    if isinstance(x, nn.Module):
        return copy.deepcopy(x).to(device, dtype)
    if isinstance(x, Tensor):
        found = x.detach().to(device, dtype) if x.is_floating_point() else x.detach().to(device).clone()
        return found.requires_grad_(x.requires_grad)
    if isinstance(x, _Closure):
        return x.at(dtype, device)
    if isinstance(x, Mask | ALiBi) and vars(x):
        found = copy.copy(x)
        for name, held in vars(x).items():
            object.__setattr__(found, name, moved(held, dtype, device))
        return found
    return x


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "heads last": lambda x: x.transpose(-2, -3).contiguous().transpose(-2, -3),
    "expanded features": lambda x: x[..., :1].expand_as(x),
    "expanded time": lambda x: x[..., :1, :].expand_as(x),
    "expanded batch": lambda x: x[:1].expand_as(x),
    "every other": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "offset": lambda x: torch.cat([x, x], -1)[..., x.shape[-1] :],
    "flipped": lambda x: x.flip(-2),
    "negative": lambda x: torch._neg_view(-x),  # type: ignore[attr-defined]
}


class _Closure:
    """A bias that closes over a parameter, as a function of positions or as a subclass of Bias."""

    def __init__(self, parameter: Tensor, subclass: bool) -> None:
        self.parameter, self.subclass = parameter, subclass

    def at(self, dtype: torch.dtype, device: str) -> _Closure:
        return type(self)(self.parameter.detach().to(device, dtype).requires_grad_(), self.subclass)

    def given(self) -> Any:
        slope = self.parameter
        return _Sloped(slope) if self.subclass else lambda t, s: -slope * (t - s).abs()

    def __repr__(self) -> str:
        return "a subclass of Bias" if self.subclass else "a function of positions"


class _Sloped(Bias):
    def __init__(self, slope: Tensor) -> None:
        self.slope = slope

    def values(self, grid: Grid, query: Tensor) -> Tensor:
        return -self.slope * (grid.k - grid.position()).abs()


class _Skewed(ScaledDot):
    """A subclass whose energy is another one."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return super().__call__(query, key) + query[..., :1] * key[..., 0].unsqueeze(-2)


class _Ahead(Causal):
    """A subclass that allows the future and not the past."""

    def allowed(self, grid: Grid) -> Tensor:
        return grid.k >= grid.position()


class _Squared(Softmax):
    """A subclass whose rows do not sum to 1."""

    def rows(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, -1) ** 2


def _sizes(rng: random.Random, longest: int = 70) -> tuple[int, int]:
    Tq = rng.choice([1, 2, rng.randint(3, longest), rng.randint(3, longest), 130])
    return Tq, rng.choice([Tq, Tq, rng.randint(1, longest), 130])


def _inputs(
    rng: random.Random,
    dtype: torch.dtype = torch.float32,
    leading: tuple[int, ...] | None = None,
    heads: tuple[int, int] | None = None,
    sizes: tuple[int, int] | None = None,
    dims: tuple[int, int] | None = None,
) -> Case:
    leading = (rng.randint(1, 3),) if leading is None else leading
    H, Hk = rng.choice([(1, 1), (2, 2), (3, 3), (4, 4)]) if heads is None else heads
    Tq, Tk = _sizes(rng) if sizes is None else sizes
    D, Dv = rng.choice([(8, 8), (16, 16), (20, 20), (32, 32), (4, 16), (16, 3)]) if dims is None else dims
    shapes = {"query": (*leading, H, Tq, D), "key": (*leading, Hk, Tk, D), "value": (*leading, Hk, Tk, Dv)}
    return Case("", 0, dtype, {n: torch.randn(s, dtype=torch.float64) for n, s in shapes.items()})


def _shape(found: Case) -> tuple[tuple[int, ...], int, int, int, int]:
    q, k = found.leaves["query"], found.leaves["key"]
    return tuple(q.shape[:-3]), q.shape[-3], q.shape[-2], k.shape[-2], q.shape[-1]


def draw_mask(rng: random.Random, leading: tuple[int, ...], H: int, Tq: int, Tk: int, depth: int = 1) -> Mask:
    """Any mask for such a call, also joined and negated ones, also some that leave rows empty."""
    kinds = ["causal", "window", "padding", "documents", "prefix", "dilated", "diagonal", "dense"]
    kind = rng.choice(kinds + (["and", "or", "not"] * 2 if depth else []))
    integer = rng.choice(INTEGERS)
    offset = rng.choice([None, None, None, 0, 2, -1])
    if rng.random() < 0.1:
        offset = torch.randint(
            -2, max(3, Tk), leading, dtype=rng.choice([torch.int32, torch.int64])
        )  # as with rows of a cache
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
            found = Documents(queries, None if Tq == Tk and rng.random() < 0.5 else ids[:Tk])
            return _packed(random.Random(f"packed {ids.tolist()}"), Tq, Tk, alone=depth > 0) or found
        case "prefix":
            return Prefix(
                rng.randint(0, Tk)
                if rng.random() < 0.5
                else torch.randint(0, min(Tk, 120) + 1, leading).to(integer)
            )
        case "dilated":
            return Dilated(rng.randint(1, 5), offset)
        case "diagonal":
            return Diagonal(offset)
        case "dense":
            shape = rng.choice(
                [
                    (Tq, Tk),
                    (1, Tk),
                    (H, Tq, Tk),
                    (*leading, 1, Tq, Tk),
                    (*leading, H, Tq, Tk),
                    (*leading, 1, 1, Tk),
                ]
            )
            return Dense(torch.rand(shape) < rng.choice([0.1, 0.5, 0.9]))
    a = draw_mask(rng, leading, H, Tq, Tk, depth=0)
    if kind == "not":
        return ~a
    b = draw_mask(rng, leading, H, Tq, Tk, depth=0)
    return a & b if kind == "and" else a | b


def _packed(rng: random.Random, Tq: int, Tk: int, alone: bool) -> Packed | None:
    """In half of the cases up to four packed sequences, some of them empty, with a rule inside.

    `rng` is one of its own: other cases are as they were before there were packed sequences. Keys of other lengths are drawn only
    where the mask stands alone, since beside others they may be refused.
    """
    n, other = rng.randint(1, 4), Tq != Tk or rng.random() < 0.4
    if rng.random() < 0.5 or (other and not alone):
        return None
    queries, keys = ([0, *sorted(rng.randint(0, T) for _ in range(n - 1)), T] for T in (Tq, Tk))
    prefix = Causal() | Prefix([rng.randint(0, 5) for _ in range(n)])
    inside = rng.choice([None, Causal(), Causal(), Window(3, 1), prefix, Dilated(2), ~Diagonal()])
    return Packed(torch.tensor(queries, dtype=torch.int32), keys if other else None, inside)


def _energy(rng: random.Random, D: int, H: int) -> Energy | Callable[[Tensor, Tensor], Tensor]:
    heads = rng.choice([None, H])
    kinds: list[Callable[[], Any]] = [
        lambda: Dot(0.3), lambda: Cosine(4.0), lambda: Distance(), lambda: Match(), lambda: Bilinear(D, heads=heads, scale=0.5),
        lambda: Bilinear(D, rank=3, heads=heads, scale=0.5), lambda: Additive(D, hidden=6, heads=heads),
        lambda: Additive(D, hidden=6), lambda: lambda q, k: torch.sin(q @ k.mT),
    ]  # fmt: skip
    return rng.choice(kinds)()


def _bias(rng: random.Random, leading: tuple[int, ...], H: int, D: int, Tq: int, Tk: int) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: ALiBi(H), lambda: RelativeBuckets(H, buckets=8, max_distance=20), lambda: RelativeVectors(D, clip=4),
        lambda: torch.randn(*leading, 1, Tq, Tk), lambda: torch.randn(H, Tq, Tk).requires_grad_(),
        lambda: torch.randn(1, Tk), lambda: lambda t, s: -0.01 * (t - s) ** 2,
    ]  # fmt: skip
    return rng.choice(kinds)()


def _plain(rng: random.Random) -> Case:
    found = _inputs(rng)
    if rng.random() < 0.5:
        _, _, Tq, Tk, _ = _shape(found)
        found.options["mask"] = Causal() if rng.random() < 0.5 else Dense(torch.rand(Tq, Tk) < 0.8)
    return found


def _dtypes(rng: random.Random) -> Case:
    found = _plain(rng)
    found.dtype = rng.choice(FLOATS)
    return found


def _large_half(rng: random.Random) -> Case:
    """Half precision with energies of some size, and biases that need float32."""
    found = _inputs(rng, rng.choice([torch.bfloat16, torch.float16]), dims=(32, 32))
    found.leaves["query"] *= 3
    _, H, Tq, Tk, _ = _shape(found)
    found.options = rng.choice(
        [{}, {"mask": Causal()}, {"bias": ALiBi(H)}, {"bias": torch.randn(Tq, Tk) * 20}]
    )
    return found


def _strides(rng: random.Random) -> Case:
    found = _plain(rng)
    found.dtype = rng.choice(FLOATS)
    found.layouts = {n: rng.choice(list(LAYOUTS)) for n in found.leaves}
    return found


def _empty(rng: random.Random) -> Case:
    shape = rng.choice(
        [((0,), 2, 3, 4), ((2,), 2, 0, 4), ((2,), 2, 3, 0), ((2,), 2, 0, 0), ((2, 0), 2, 5, 4)]
    )
    found = _inputs(rng, rng.choice(FLOATS), leading=shape[0], heads=(shape[1], shape[1]), sizes=shape[2:])
    if rng.random() < 0.5:
        found.options["mask"] = Causal()
    return found


def _batch_axes(rng: random.Random) -> Case:
    leading = rng.choice([(), (2,), (2, 3), (1, 2, 2)])
    found = _inputs(rng, rng.choice([torch.float32, torch.float64]), leading=leading)
    _, H, Tq, Tk, D = _shape(found)
    if rng.random() < 0.6:
        found.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    if rng.random() < 0.4:
        found.options["bias"] = _bias(rng, leading, H, D, Tq, Tk)
    return found


def _broadcast(rng: random.Random) -> Case:
    """One query for many keys, one key for many queries, batch axes of size 1."""
    found = _inputs(rng, leading=(3,), heads=(2, 2))
    for name in rng.choice([("query",), ("key", "value"), ("value",)]):
        axis = rng.choice([0, 1])
        found.leaves[name] = found.leaves[name].narrow(axis, 0, 1).contiguous()
    if rng.random() < 0.5:
        found.options["mask"] = Causal()
    return found


def _grouped(rng: random.Random) -> Case:
    found = _inputs(
        rng,
        rng.choice([torch.float32, torch.float64, torch.bfloat16]),
        heads=rng.choice([(4, 2), (6, 3), (3, 1), (8, 2)]),
    )
    leading, H, Tq, Tk, _ = _shape(found)
    if rng.random() < 0.6:
        found.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    return found


def _masks(rng: random.Random) -> Case:
    found = _inputs(rng, rng.choice([torch.float32, torch.float32, torch.float64]))
    leading, H, Tq, Tk, _ = _shape(found)
    found.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    return found


def _integer_masks(rng: random.Random) -> Case:
    """Lengths and document ids of every integer type, sorted or not."""
    T = rng.choice([90, 120])
    found = _inputs(rng, sizes=(T, T))
    leading, _, Tq, _, _ = _shape(found)
    if rng.random() < 0.5:
        found.options["mask"] = Padding(torch.randint(0, Tq + 1, leading).to(rng.choice(INTEGERS)))
    else:
        kind = rng.choice([*INTEGERS, torch.bool])
        ids = torch.randint(0, 2 if kind == torch.bool else 100, (3,))[torch.arange(Tq) // 50].to(kind)
        found.options["mask"] = Documents(ids)
    return found


def _empty_rows(rng: random.Random) -> Case:
    """At least half of the queries may see no key: zeros, and zero gradient."""
    found = _inputs(rng, rng.choice(FLOATS))
    leading, _, Tq, Tk, _ = _shape(found)
    dense = torch.rand(*leading, 1, Tq, Tk) < 0.6
    dense[..., : (Tq + 1) // 2, :] = False
    found.options["mask"] = Dense(dense)
    return found


def _unseen(rng: random.Random) -> Case:
    """NaN or ∞ in keys and values that no query may see."""
    found = _mixed(rng)
    leading, _, Tq, Tk, _ = _shape(found)
    found.options.pop("gate", None)
    broken, cut = rng.choice([math.nan, math.inf]), Tk // 2
    if not cut:
        return _unseen(rng)
    for name in ("key", "value"):
        found.leaves[name][..., cut:, :] = broken
    hidden = torch.arange(Tk) < cut
    how = rng.choice(["dense", "padding", "bias", "both"])
    if how == "padding":
        found.options["mask"] = Padding(torch.full(leading, cut))
    elif how == "dense":
        found.options["mask"] = Dense(hidden.expand(Tq, Tk))
    else:
        bias = torch.randn(Tq, Tk).masked_fill(~hidden, -math.inf)
        found.options["bias"] = bias
        found.options["mask"] = Causal() if how == "both" and Tq == Tk else None
    return found


def _odd_bias(rng: random.Random) -> Case:
    """−∞ and −1e9 in a bias: the first masks, the second does not."""
    found = _inputs(rng, rng.choice(FLOATS))
    _, H, Tq, Tk, _ = _shape(found)
    bias = torch.randn(rng.choice([(Tq, Tk), (H, Tq, Tk)]))
    bias = torch.where(torch.rand(bias.shape) < 0.3, rng.choice([-math.inf, -1e9]), bias)
    bias[..., 0, :] = rng.choice([-math.inf, -1e9])
    found.options["bias"] = bias
    return found


def _options(rng: random.Random) -> Case:
    """Every energy, mask, bias and normaliser together."""
    found = _inputs(rng, rng.choice([torch.float32, torch.float32, torch.float64]))
    leading, H, Tq, Tk, D = _shape(found)
    options: dict[str, Any] = {}
    if rng.random() < 0.6:
        options["energy"] = _energy(rng, D, H)
    if rng.random() < 0.6:
        options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    if rng.random() < 0.5:
        options["bias"] = _bias(rng, leading, H, D, Tq, Tk)
    if rng.random() < 0.5:
        options["normalize"] = rng.choice(
            [Softmax(0.5), Softmax(2.0), Raw(), Sigmoid(), Sparsemax(), Entmax(), Entmax(1.3), Hard()]
        )
    if rng.random() < 0.25:
        options["softcap"] = 3.0
    if rng.random() < 0.2:
        options["gate"] = Window.centered(6)
    if isinstance(options.get("normalize"), Hard):
        found.dtype = torch.float64  # it jumps between nearly equal energies
    found.options = options
    return found


def _mixed(rng: random.Random) -> Case:
    """Half of the cases with a mask and a bias only, which most functions take; the other half with every option."""
    if rng.random() < 0.5:
        return _options(rng)
    found = _inputs(rng, rng.choice([torch.float32, torch.float32, torch.float64]))
    leading, H, Tq, Tk, D = _shape(found)
    if rng.random() < 0.7:
        found.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    if rng.random() < 0.5:
        found.options["bias"] = _bias(rng, leading, H, D, Tq, Tk)
    return found


def _energies(rng: random.Random) -> Case:
    """Every energy, with a mask or a bias now and then."""
    found = _inputs(rng, rng.choice([torch.float32, torch.float32, torch.float64]))
    leading, H, Tq, Tk, D = _shape(found)
    found.options["energy"] = _energy(rng, D, H)
    if rng.random() < 0.5:
        found.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    if rng.random() < 0.3:
        found.options["bias"] = _bias(rng, leading, H, D, Tq, Tk)
    return found


def _closures(rng: random.Random) -> Case:
    """Biases that close over a parameter, and subclasses that change a rule."""
    found = _inputs(rng, rng.choice([torch.float32, torch.float64]))
    kinds: list[dict[str, Any]] = [
        {"bias": _Closure(torch.tensor(0.05), False)},
        {"bias": _Closure(torch.tensor(0.05), True)},
        {"energy": _Skewed()},
        {"mask": _Ahead()},
        {"normalize": _Squared()},
    ]
    found.options = dict(rng.choice(kinds))
    if "mask" not in found.options and rng.random() < 0.5:
        found.options["mask"] = Window(9, 9)
    return found


def _with_action(action: str, draw: Callable[[random.Random], Case]) -> Callable[[random.Random], Case]:
    def drawn(rng: random.Random) -> Case:
        found = draw(rng)
        found.action = action
        return found

    return drawn


def _changed(rng: random.Random) -> Case:
    """A mask, bias or length that is written to between the passes."""
    found = _inputs(rng, rng.choice([torch.float32, torch.float64]))
    leading, H, Tq, Tk, _ = _shape(found)
    which = rng.choice(["mask", "bias", "lengths"])
    if which == "mask":
        found.options["mask"] = torch.rand(Tq, Tk) < 0.7
    elif which == "bias":
        found.options["bias"] = torch.randn(H, Tq, Tk)
    else:
        found.options["mask"] = Padding(torch.randint(1, Tk + 1, leading))
    found.action = "change"
    return found


def _twice(rng: random.Random) -> Case:
    found = _mixed(rng)
    if isinstance(found.options.get("normalize"), Hard):
        found.options.pop("normalize")
    found.dtype = rng.choice([torch.float32, torch.float64])
    found.action = "differentiate twice"
    return found


def _inference(rng: random.Random) -> Case:
    """No gradients, with every kind of mask; half of the cases are self-attention on one tensor."""
    found = _masks(rng) if rng.random() < 0.7 else _plain(rng)
    found.dtype = rng.choice(FLOATS)
    q, k, v = found.leaves.values()
    if q.shape == k.shape == v.shape:
        found.leaves |= {"key": q.clone(), "value": q.clone()}
    found.action = "inference"
    return found


def _traced(rng: random.Random) -> Case:
    found = _inputs(rng, sizes=rng.choice([(9, 9), (9, 14), (130, 130)]))
    _, H, _, _, _ = _shape(found)
    found.options = dict(
        rng.choice(
            [{}, {"mask": Causal()}, {"mask": Window(5, 2)}, {"bias": ALiBi(H)}, {"mask": ~Diagonal()}]
        )
    )
    return found


def _long(rng: random.Random) -> Case:
    """Sequences long enough that kernels for long ones are chosen."""
    T = rng.choice([300, 330])
    found = _inputs(
        rng,
        rng.choice(FLOATS),
        leading=(1,),
        heads=(3, rng.choice([1, 3])),
        sizes=(T, rng.choice([T, 280])),
        dims=(16, 16),
    )
    leading, H, Tq, Tk, D = _shape(found)
    if rng.random() < 0.8:
        found.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    if rng.random() < 0.4 and found.dtype not in (torch.float16, torch.bfloat16):
        found.options["bias"] = _bias(rng, leading, H, D, Tq, Tk)
    if rng.random() < 0.3:
        found.layouts = {n: rng.choice(list(LAYOUTS)) for n in found.leaves}
    return found


CLASSES: dict[str, Callable[[random.Random], Case]] = {
    "plain": _plain,
    "dtypes": _dtypes,
    "half precision": _large_half,
    "strides": _strides,
    "long sequences": _long,
    "empty axes": _empty,
    "batch axes": _batch_axes,
    "broadcasting": _broadcast,
    "grouped heads": _grouped,
    "masks": _masks,
    "integer masks": _integer_masks,
    "fully masked rows": _empty_rows,
    "masked NaN": _unseen,
    "large negative bias": _odd_bias,
    "energies": _energies,
    "all options": _options,
    "closures, subclasses": _closures,
    "in-place change": _changed,
    "inference": _inference,
    "autocast": _with_action("autocast", _traced),
    "default dtype": _with_action("default dtype", _mixed),
    "device context": _with_action("device context", _mixed),
    "second derivative": _twice,
    "vmap": _with_action("vmap", _traced),
    "func.grad": _with_action("func.grad", _traced),
    "compile": _with_action("compile", _traced),
    "export": _with_action("export", _traced),
    "threads": _with_action("threads", _mixed),
}
