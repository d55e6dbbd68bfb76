"""Random attention calls, by class of input. The class and a seed determine a case.

Inputs are drawn in float64 and rounded to the dtype of the case, so that the float64 truth uses exactly the
same inputs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.bias import ALiBi, Bias
from regard.attention.mask import Dense
from regard.attention.normalize import Entmax, Hard, Raw, Sigmoid, Softmax, Sparsemax
from regard.attention.packed import Packed
from regard.attention.position_masks import Causal, Diagonal, Documents, Padding, Window
from regard.conformance.draw_options import (
    INTEGERS,
    ClosureBias,
    FutureOnly,
    SkewedEnergy,
    SquaredSoftmax,
    copy_option,
    draw_bias,
    draw_energy,
    draw_mask,
)

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass
class Case:
    """One call: inputs, their memory layouts, options, and how the call is run (`action`)."""

    name: str  # of the class
    seed: int
    dtype: torch.dtype
    leaves: dict[str, Tensor]  # query, key and value in float64
    layouts: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    action: str = "run"

    def make(
        self, dtype: torch.dtype, device: str = "cpu"
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
        """Leaf tensors that require a gradient, the inputs in their layouts, and the options."""
        leaves = {n: x.to(device, dtype).requires_grad_() for n, x in self.leaves.items()}
        tensors = {n: LAYOUTS[self.layouts.get(n, "contiguous")](x) for n, x in leaves.items()}
        return leaves, tensors, {n: copy_option(x, dtype, device) for n, x in self.options.items()}

    def option_parameters(self, options: dict[str, Any]) -> dict[str, Tensor]:
        """Tensors in the options that require a gradient, by name."""
        parameters: dict[str, Tensor] = {}
        for name, x in options.items():
            if isinstance(x, nn.Module):
                parameters |= {f"{name}.{n}": p for n, p in x.named_parameters()}
            elif isinstance(x, Tensor) and x.requires_grad:
                parameters[name] = x
            elif isinstance(x, ClosureBias):
                parameters[f"{name}.closure"] = x.parameter
        return parameters

    def __str__(self) -> str:
        shapes = ", ".join(
            f"{n} {tuple(x.shape)} {self.layouts.get(n, '')}".rstrip() for n, x in self.leaves.items()
        )
        options = ", ".join(f"{n}={x!r}".replace("\n", " ")[:90] for n, x in self.options.items())
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.name} {self.seed}: {dtype} {shapes}; {options or 'no options'}; {self.action}"


def case(name: str, seed: int) -> Case:
    """The case of a class with this seed."""
    if name not in CLASSES:
        raise ValueError(f"there is no class {name!r}; the classes are {'; '.join(CLASSES)}")
    state = torch.random.get_rng_state()
    rng = random.Random(f"{name} {seed}")
    torch.manual_seed(rng.randrange(2**31))
    try:
        drawn = CLASSES[name](rng)
    finally:
        torch.random.set_rng_state(state)
    drawn.name, drawn.seed = name, seed
    if isinstance(mask := drawn.options.get("mask"), Packed) and mask.cu_seqlens_k is not None:
        for option in ("bias", "gate"):  # Packed with other key lengths takes only tensors beside it
            if not isinstance(drawn.options.get(option), Tensor):
                drawn.options.pop(option, None)
    drawn.leaves = {n: x.to(drawn.dtype).double() for n, x in drawn.leaves.items()}
    for n, x in drawn.options.items():  # −1e9 in float16 is −∞, also in the truth
        if isinstance(x, Tensor) and x.is_floating_point():
            drawn.options[n] = x.detach().to(drawn.dtype).double().requires_grad_(x.requires_grad)
    return drawn


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


def _sizes(rng: random.Random, longest: int = 70) -> tuple[int, int]:
    Tq = rng.choice([1, 2, rng.randint(3, longest), rng.randint(3, longest), 130])
    return Tq, rng.choice([Tq, Tq, rng.randint(1, longest), 130])


def _draw_inputs(
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


def _shape(case: Case) -> tuple[tuple[int, ...], int, int, int, int]:
    """leading, H, Tq, Tk, D"""
    q, k = case.leaves["query"], case.leaves["key"]
    return tuple(q.shape[:-3]), q.shape[-3], q.shape[-2], k.shape[-2], q.shape[-1]


def _add_mask_and_bias(rng: random.Random, case: Case, mask: float, bias: float) -> None:
    """Add a mask and a bias, each with this probability."""
    leading, H, Tq, Tk, D = _shape(case)
    if rng.random() < mask:
        case.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    if rng.random() < bias:
        case.options["bias"] = draw_bias(rng, leading, H, D, Tq, Tk)


def _plain(rng: random.Random) -> Case:
    drawn = _draw_inputs(rng)
    if rng.random() < 0.5:
        _, _, Tq, Tk, _ = _shape(drawn)
        drawn.options["mask"] = Causal() if rng.random() < 0.5 else Dense(torch.rand(Tq, Tk) < 0.8)
    return drawn


def _dtypes(rng: random.Random) -> Case:
    drawn = _plain(rng)
    drawn.dtype = rng.choice(FLOATS)
    return drawn


def _large_half(rng: random.Random) -> Case:
    """Half precision with large energies, and biases that need float32."""
    drawn = _draw_inputs(rng, rng.choice([torch.bfloat16, torch.float16]), dims=(32, 32))
    drawn.leaves["query"] *= 3
    _, H, Tq, Tk, _ = _shape(drawn)
    drawn.options = rng.choice(
        [{}, {"mask": Causal()}, {"bias": ALiBi(H)}, {"bias": torch.randn(Tq, Tk) * 20}]
    )
    return drawn


def _strides(rng: random.Random) -> Case:
    drawn = _plain(rng)
    drawn.dtype = rng.choice(FLOATS)
    drawn.layouts = {n: rng.choice(list(LAYOUTS)) for n in drawn.leaves}
    return drawn


def _empty(rng: random.Random) -> Case:
    shape = rng.choice(
        [((0,), 2, 3, 4), ((2,), 2, 0, 4), ((2,), 2, 3, 0), ((2,), 2, 0, 0), ((2, 0), 2, 5, 4)]
    )
    drawn = _draw_inputs(
        rng, rng.choice(FLOATS), leading=shape[0], heads=(shape[1], shape[1]), sizes=shape[2:]
    )
    if rng.random() < 0.5:
        drawn.options["mask"] = Causal()
    return drawn


def _batch_axes(rng: random.Random) -> Case:
    leading = rng.choice([(), (2,), (2, 3), (1, 2, 2)])
    drawn = _draw_inputs(rng, rng.choice([torch.float32, torch.float64]), leading=leading)
    _add_mask_and_bias(rng, drawn, 0.6, 0.4)
    return drawn


def _broadcast(rng: random.Random) -> Case:
    """One query for many keys, one key for many queries, batch axes of size 1."""
    drawn = _draw_inputs(rng, leading=(3,), heads=(2, 2))
    for name in rng.choice([("query",), ("key", "value"), ("value",)]):
        axis = rng.choice([0, 1])
        drawn.leaves[name] = drawn.leaves[name].narrow(axis, 0, 1).contiguous()
    if rng.random() < 0.5:
        drawn.options["mask"] = Causal()
    return drawn


def _grouped(rng: random.Random) -> Case:
    drawn = _draw_inputs(
        rng,
        rng.choice([torch.float32, torch.float64, torch.bfloat16]),
        heads=rng.choice([(4, 2), (6, 3), (3, 1), (8, 2)]),
    )
    leading, H, Tq, Tk, _ = _shape(drawn)
    if rng.random() < 0.6:
        drawn.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    return drawn


def _masks(rng: random.Random) -> Case:
    drawn = _draw_inputs(rng, rng.choice([torch.float32, torch.float32, torch.float64]))
    leading, H, Tq, Tk, _ = _shape(drawn)
    drawn.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    return drawn


def _integer_masks(rng: random.Random) -> Case:
    """Lengths and document ids of every integer type, sorted or not."""
    T = rng.choice([90, 120])
    drawn = _draw_inputs(rng, sizes=(T, T))
    leading, _, Tq, _, _ = _shape(drawn)
    if rng.random() < 0.5:
        drawn.options["mask"] = Padding(torch.randint(0, Tq + 1, leading).to(rng.choice(INTEGERS)))
    else:
        kind = rng.choice([*INTEGERS, torch.bool])
        ids = torch.randint(0, 2 if kind == torch.bool else 100, (3,))[torch.arange(Tq) // 50].to(kind)
        drawn.options["mask"] = Documents(ids)
    return drawn


def _empty_rows(rng: random.Random) -> Case:
    """At least half of the queries may see no key: zeros, and zero gradient."""
    drawn = _draw_inputs(rng, rng.choice(FLOATS))
    leading, _, Tq, Tk, _ = _shape(drawn)
    dense = torch.rand(*leading, 1, Tq, Tk) < 0.6
    dense[..., : (Tq + 1) // 2, :] = False
    drawn.options["mask"] = Dense(dense)
    return drawn


def _masked_nan(rng: random.Random) -> Case:
    """NaN or ∞ in keys and values that no query may see."""
    drawn = _mixed(rng)
    leading, _, Tq, Tk, _ = _shape(drawn)
    drawn.options.pop("gate", None)
    nonfinite, cut = rng.choice([math.nan, math.inf]), Tk // 2
    if not cut:
        return _masked_nan(rng)
    for name in ("key", "value"):
        drawn.leaves[name][..., cut:, :] = nonfinite
    visible = torch.arange(Tk) < cut
    how = rng.choice(["dense", "padding", "bias", "both"])
    if how == "padding":
        drawn.options["mask"] = Padding(torch.full(leading, cut))
    elif how == "dense":
        drawn.options["mask"] = Dense(visible.expand(Tq, Tk))
    else:
        bias = torch.randn(Tq, Tk).masked_fill(~visible, -math.inf)
        drawn.options["bias"] = bias
        drawn.options["mask"] = Causal() if how == "both" and Tq == Tk else None
    return drawn


def _negative_bias(rng: random.Random) -> Case:
    """−∞ and −1e9 in a bias: the first masks, the second does not."""
    drawn = _draw_inputs(rng, rng.choice(FLOATS))
    _, H, Tq, Tk, _ = _shape(drawn)
    bias = torch.randn(rng.choice([(Tq, Tk), (H, Tq, Tk)]))
    bias = torch.where(torch.rand(bias.shape) < 0.3, rng.choice([-math.inf, -1e9]), bias)
    bias[..., 0, :] = rng.choice([-math.inf, -1e9])
    drawn.options["bias"] = bias
    return drawn


def _options(rng: random.Random) -> Case:
    """Random combinations of energy, mask, bias, normaliser, soft cap and gate."""
    drawn = _draw_inputs(rng, rng.choice([torch.float32, torch.float32, torch.float64]))
    leading, H, Tq, Tk, D = _shape(drawn)
    options: dict[str, Any] = {}
    if rng.random() < 0.6:
        options["energy"] = draw_energy(rng, D, H)
    if rng.random() < 0.6:
        options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    if rng.random() < 0.5:
        options["bias"] = draw_bias(rng, leading, H, D, Tq, Tk)
    if rng.random() < 0.5:
        options["normalize"] = rng.choice(
            [Softmax(0.5), Softmax(2.0), Raw(), Sigmoid(), Sparsemax(), Entmax(), Entmax(1.3), Hard()]
        )
    if rng.random() < 0.25:
        options["softcap"] = 3.0
    if rng.random() < 0.2:
        own = random.Random(repr(rng.getstate()))  # draws nothing from `rng`
        gate = draw_bias(own, leading, H, D, Tq, Tk)
        options["gate"] = gate if isinstance(gate, Bias | Tensor) else Window.centered(6)
    if isinstance(options.get("normalize"), Hard):
        drawn.dtype = torch.float64  # it is discontinuous: nearly equal energies may swap
    drawn.options = options
    return drawn


def _mixed(rng: random.Random) -> Case:
    """Half of the cases with only a mask and a bias, which most functions take; half with every option."""
    if rng.random() < 0.5:
        return _options(rng)
    drawn = _draw_inputs(rng, rng.choice([torch.float32, torch.float32, torch.float64]))
    _add_mask_and_bias(rng, drawn, 0.7, 0.5)
    return drawn


def _energies(rng: random.Random) -> Case:
    """Every energy, sometimes with a mask or a bias."""
    drawn = _draw_inputs(rng, rng.choice([torch.float32, torch.float32, torch.float64]))
    _, H, _, _, D = _shape(drawn)
    drawn.options["energy"] = draw_energy(rng, D, H)
    _add_mask_and_bias(rng, drawn, 0.5, 0.3)
    if getattr(drawn.options["energy"], "scale", 1.0) <= 0:
        drawn.options.setdefault("mask", Causal(offset=0))  # torch's is_causal, where the sign matters
    return drawn


def _closures(rng: random.Random) -> Case:
    """Biases with a parameter in their closure, and subclasses that override a method."""
    drawn = _draw_inputs(rng, rng.choice([torch.float32, torch.float64]))
    kinds: list[dict[str, Any]] = [
        {"bias": ClosureBias(torch.tensor(0.05), False)},
        {"bias": ClosureBias(torch.tensor(0.05), True)},
        {"energy": SkewedEnergy()},
        {"mask": FutureOnly()},
        {"normalize": SquaredSoftmax()},
    ]
    drawn.options = dict(rng.choice(kinds))
    if "mask" not in drawn.options and rng.random() < 0.5:
        drawn.options["mask"] = Window(9, 9)
    return drawn


def _with_action(action: str, draw: Callable[[random.Random], Case]) -> Callable[[random.Random], Case]:
    def draw_with_action(rng: random.Random) -> Case:
        drawn = draw(rng)
        drawn.action = action
        return drawn

    return draw_with_action


def _changed(rng: random.Random) -> Case:
    """A mask, bias or length that is changed in place between forward and backward."""
    drawn = _draw_inputs(rng, rng.choice([torch.float32, torch.float64]))
    leading, H, Tq, Tk, _ = _shape(drawn)
    which = rng.choice(["mask", "bias", "lengths"])
    if which == "mask":
        drawn.options["mask"] = torch.rand(Tq, Tk) < 0.7
    elif which == "bias":
        drawn.options["bias"] = torch.randn(H, Tq, Tk)
    else:
        drawn.options["mask"] = Padding(torch.randint(1, Tk + 1, leading))
    drawn.action = "change"
    return drawn


def _twice(rng: random.Random) -> Case:
    drawn = _mixed(rng)
    if isinstance(drawn.options.get("normalize"), Hard):
        drawn.options.pop("normalize")
    drawn.dtype = rng.choice([torch.float32, torch.float64])
    drawn.action = "differentiate twice"
    return drawn


def _inference(rng: random.Random) -> Case:
    """No gradients, with every kind of mask; equal shapes become self-attention on one tensor."""
    drawn = _masks(rng) if rng.random() < 0.7 else _plain(rng)
    drawn.dtype = rng.choice(FLOATS)
    q, k, v = drawn.leaves.values()
    if q.shape == k.shape == v.shape:
        drawn.leaves |= {"key": q.clone(), "value": q.clone()}
    drawn.action = "inference"
    return drawn


def _traced(rng: random.Random) -> Case:
    drawn = _draw_inputs(rng, sizes=rng.choice([(9, 9), (9, 14), (130, 130)]))
    _, H, _, _, _ = _shape(drawn)
    drawn.options = dict(
        rng.choice(
            [{}, {"mask": Causal()}, {"mask": Window(5, 2)}, {"bias": ALiBi(H)}, {"mask": ~Diagonal()}]
        )
    )
    return drawn


def _long(rng: random.Random) -> Case:
    """Sequences long enough for the kernels of long sequences."""
    T = rng.choice([300, 330])
    drawn = _draw_inputs(
        rng,
        rng.choice(FLOATS),
        leading=(1,),
        heads=(3, rng.choice([1, 3])),
        sizes=(T, rng.choice([T, 280])),
        dims=(16, 16),
    )
    leading, H, Tq, Tk, D = _shape(drawn)
    if rng.random() < 0.8:
        drawn.options["mask"] = draw_mask(rng, leading, H, Tq, Tk)
    if rng.random() < 0.4 and drawn.dtype not in (torch.float16, torch.bfloat16):
        drawn.options["bias"] = draw_bias(rng, leading, H, D, Tq, Tk)
    if rng.random() < 0.3:
        drawn.layouts = {n: rng.choice(list(LAYOUTS)) for n in drawn.leaves}
    return drawn


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
    "masked NaN": _masked_nan,
    "large negative bias": _negative_bias,
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
