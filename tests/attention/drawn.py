"""Attention calls drawn at random: every energy, mask, bias and normaliser, odd sizes, groups and broadcast axes."""

from __future__ import annotations

import copy

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import regard
from regard import (
    Additive,
    ALiBi,
    Bilinear,
    Causal,
    Cosine,
    Dense,
    Diagonal,
    Dilated,
    Distance,
    Documents,
    Dot,
    Entmax,
    Hard,
    Match,
    Padding,
    Prefix,
    Raw,
    RelativeBuckets,
    RelativeVectors,
    ScaledDot,
    Sigmoid,
    Softmax,
    Sparsemax,
    Window,
)  # fmt: skip

NORMALIZERS = [Softmax(), Softmax(), Softmax(), Softmax(0.5), Raw(), Sigmoid(), Sparsemax(), Entmax(), Entmax(1.3), Hard()]


class Drawn:
    """Inputs and options of one call; `at(dtype)` gives them as leaves of that dtype, always the same numbers."""

    def __init__(self, tensors: dict[str, Tensor], options: dict) -> None:
        self.tensors, self.options = tensors, options

    def at(self, dtype: torch.dtype, device: str = "cpu") -> tuple[dict[str, Tensor], dict]:
        inputs = {n: x.to(device, dtype).requires_grad_() for n, x in self.tensors.items()}
        options = {}
        for name, x in self.options.items():
            if isinstance(x, nn.Module):
                x = copy.deepcopy(x).to(device, dtype)
            elif isinstance(x, Tensor) and x.is_floating_point():
                x = x.detach().to(device, dtype).requires_grad_(x.requires_grad)
            elif isinstance(x, regard.Mask):
                x = moved(x, device)
            options[name] = x
        return inputs, options

    def run(self, kernel: str | None, dtype: torch.dtype, grad: Tensor | None = None, device: str = "cpu") -> dict[str, Tensor]:
        """The output and, with `grad`, the gradient of everything that learns."""
        inputs, options = self.at(dtype, device)
        out = regard.attend(*inputs.values(), **options, kernel=kernel)
        found = {"out": out.detach()}
        if grad is not None and out.requires_grad:
            leaves = dict(inputs)
            for name, x in options.items():
                if isinstance(x, nn.Module):
                    leaves |= {f"{name}.{n}": p for n, p in x.named_parameters()}
                elif isinstance(x, Tensor) and x.requires_grad:
                    leaves[name] = x
            grads = torch.autograd.grad(out, list(leaves.values()), grad.to(device, dtype), allow_unused=True)
            found |= {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(leaves.items(), grads, strict=True)}
        return {n: x.cpu() for n, x in found.items()}

    def largest_energy(self) -> float:
        inputs, options = self.at(torch.float64)
        energies = regard.weights(inputs["query"], inputs["key"], **options, stage="biased").detach()
        return energies.nan_to_num(0.0, 0.0, 0.0).abs().max().item()

    def sizes(self) -> Drawn:
        """The same call on the absolute values: how large the terms are that are added up."""
        return Drawn(self.tensors | {"value": self.tensors["value"].abs()}, self.options)

    def nudged(self, eps: float) -> Drawn:
        """The same call with every input moved by about eps of itself, as rounding would."""
        return Drawn({n: x.double() * (1 + eps * torch.randn_like(x)) for n, x in self.tensors.items()}, self.options)

    def __repr__(self) -> str:
        shapes = {n: tuple(x.shape) for n, x in self.tensors.items()}
        return f"Drawn({shapes}, {self.options})"


def moved(mask: regard.Mask, device: str) -> regard.Mask:
    from dataclasses import fields, replace

    held = {f.name: getattr(mask, f.name) for f in fields(mask)}
    change = lambda v: v.to(device) if isinstance(v, Tensor) else moved(v, device) if isinstance(v, regard.Mask) else v  # noqa: E731
    return replace(mask, **{n: change(v) for n, v in held.items()})


@st.composite
def masks(draw, B: int, H: int, Tq: int, Tk: int, depth: int = 1) -> regard.Mask | None:
    """Any mask for such a call, also joined and negated ones, also some that leave rows empty."""
    kinds = ["causal", "window", "padding", "documents", "prefix", "dilated", "diagonal", "dense"]
    kind = draw(st.sampled_from(kinds + (["and", "or", "not"] * 2 if depth else [])))
    offset = draw(st.sampled_from([None, None, 0, 2, -1]))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if kind == "causal":
        return Causal(offset)
    if kind == "window":
        return Window(draw(st.sampled_from([None, 0, 1, 5, 40])), draw(st.sampled_from([None, 0, 0, 1, 30])), offset)
    if kind == "padding":
        return Padding(torch.randint(0, Tk + 1, (B,), generator=seed))
    if kind == "documents":
        ids = torch.randint(0, 4, (max(Tq, Tk),), generator=seed).sort().values
        return Documents(ids[:Tq], ids[:Tk])
    if kind == "prefix":
        return Prefix(draw(st.integers(0, Tk)))
    if kind == "dilated":
        return Dilated(draw(st.integers(1, 5)), offset)
    if kind == "diagonal":
        return Diagonal(offset)
    if kind == "dense":
        shape = draw(st.sampled_from([(Tq, Tk), (1, Tk), (H, Tq, Tk), (B, 1, Tq, Tk), (B, H, Tq, Tk)]))
        return Dense(torch.rand(shape, generator=seed) < draw(st.sampled_from([0.1, 0.5, 0.9])))
    a = draw(masks(B, H, Tq, Tk, depth=0))
    if kind == "not":
        return ~a
    b = draw(masks(B, H, Tq, Tk, depth=0))
    return a & b if kind == "and" else a | b


@st.composite
def energies(draw, D: int, H: int) -> object:
    kind = draw(
        st.sampled_from(
            ["scaled"] * 4 + ["dot", "cosine", "distance", "match", "bilinear", "low rank", "additive", "additive", "own"]
        )
    )
    heads = draw(st.sampled_from([None, H]))
    kind = "scaled" if kind == "cosine" and D == 1 else kind  # the direction of a number is a sign: its gradient is 0 and noise
    made = {
        "scaled": lambda: ScaledDot(), "dot": lambda: Dot(0.3), "cosine": lambda: Cosine(4.0), "distance": lambda: Distance(),
        "match": lambda: Match(), "bilinear": lambda: Bilinear(D, heads=heads, scale=0.5),
        "low rank": lambda: Bilinear(D, rank=3, heads=heads, scale=0.5), "additive": lambda: Additive(D, hidden=6, heads=heads),
        "own": lambda: lambda q, k: torch.sin(q @ k.transpose(-1, -2)),
    }  # fmt: skip
    return made[kind]()


@st.composite
def biases(draw, B: int, H: int, D: int, Tq: int, Tk: int) -> object:
    kind = draw(st.sampled_from(["none"] * 5 + ["alibi", "alibi", "buckets", "vectors", "dense", "learned", "own"]))
    made = {
        "none": lambda: None, "alibi": lambda: ALiBi(H), "buckets": lambda: RelativeBuckets(H, buckets=8, max_distance=20),
        "vectors": lambda: RelativeVectors(D, clip=4), "dense": lambda: torch.randn(B, 1, Tq, Tk),
        "learned": lambda: torch.randn(H, Tq, Tk).requires_grad_(), "own": lambda: lambda t, s: -0.01 * (t - s) ** 2,
    }  # fmt: skip
    return made[kind]()


@st.composite
def calls(draw, longest: int = 150) -> Drawn:
    """A whole call."""
    B, D, Dv = draw(st.integers(1, 3)), draw(st.sampled_from([1, 4, 8, 16, 20])), draw(st.sampled_from([0, 0, 0, 3, 16]))
    H, Hk = draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1), (6, 3)]))
    Tq, Tk = draw(st.integers(1, longest)), draw(st.integers(1, longest))
    if draw(st.booleans()):
        Tk = Tq
    torch.manual_seed(draw(st.integers(0, 2**31)))
    tensors = {"query": torch.randn(B, H, Tq, D), "key": torch.randn(B, Hk, Tk, D), "value": torch.randn(B, Hk, Tk, Dv or D)}
    options = {
        "energy": draw(energies(D, H)),
        "mask": draw(st.one_of(st.none(), masks(B, H, Tq, Tk))),
        "bias": draw(biases(B, H, D, Tq, Tk)),
        "normalize": draw(st.sampled_from(NORMALIZERS)),
        "softcap": draw(st.sampled_from([None, None, None, 3.0])),
        "gate": draw(st.sampled_from([None, None, None, None, Window.centered(6)])),
    }
    return Drawn(tensors, options)
