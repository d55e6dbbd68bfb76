"""Test on random inputs whether a layer is separable or permutation-equivariant along the sequence axis T.

A layer z: R^(T×M) → R^(T×K) is separable when z(X)_t = g(x_t) with one g for all t, and equivariant when
permuting its input permutes its output in the same way. Separable layers are equivariant; attention is
equivariant and not separable.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.arguments import integer, number, quoted
from regard.errors import OptionError

Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PropertyResult:
    """The result of a test; as a bool it is `holds`."""

    holds: bool  # in every trial
    violation: float  # the largest difference of all trials, relative to the output
    tolerance: float
    trials: int

    def __bool__(self) -> bool:
        return self.holds


def is_separable(
    layer: Layer,
    dim: int | None = None,
    *,
    T: int = 12,
    trials: int = 16,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> PropertyResult:
    """Test whether the output at each position depends only on the input there, not on the position.

    Each trial copies x_t to position s of another random sequence and compares the two outputs. `dim` is the
    input width, by default `layer.dim`.
    """

    def violation(run: Layer, x: Tensor, rng: torch.Generator) -> float:
        t, s = (int(torch.randint(T, (), generator=rng)) for _ in range(2))
        other = torch.randn(x.shape, generator=rng, dtype=x.dtype)
        other[s] = x[t]
        a, b = run(x)[t], run(other)[s]
        return _relative(a, b)

    return _run_trials(layer, dim, T, trials, tolerance, seed, violation)


def is_equivariant(
    layer: Layer,
    dim: int | None = None,
    *,
    T: int = 12,
    trials: int = 16,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> PropertyResult:
    """Test whether permuting the input permutes the output in the same way.

    `dim` is the input width, by default `layer.dim`.
    """

    def violation(run: Layer, x: Tensor, rng: torch.Generator) -> float:
        order = torch.randperm(T, generator=rng)
        return _relative(run(x[order]), run(x)[order])

    return _run_trials(layer, dim, T, trials, tolerance, seed, violation)


def _run_trials(
    layer: Layer, dim: int | None, T: int, trials: int, tolerance: float, seed: int,
    violation: Callable[[Layer, Tensor, torch.Generator], float],
) -> PropertyResult:  # fmt: skip
    dim = getattr(layer, "dim", None) if dim is None else dim
    if dim is None:
        raise OptionError("the input width of the layer is unknown; give it as dim=")
    integer("dim", dim)
    integer("T", T, 2)
    integer("trials", trials)
    integer("seed", seed, -(1 << 63), (1 << 63) - 1)
    number("tolerance", tolerance, 0)
    if not callable(layer):
        raise OptionError(f"layer must be a module or a function of (batch, T, dim), got {quoted(layer)}")
    run = copy.deepcopy(layer).double().eval() if isinstance(layer, nn.Module) else layer
    rng = torch.Generator().manual_seed(seed)
    worst = 0.0
    with torch.no_grad():
        for _ in range(trials):
            x = torch.randn(T, dim, generator=rng, dtype=torch.float64)
            worst = max(worst, violation(lambda x: run(x[None])[0], x, rng))
    return PropertyResult(worst <= tolerance, worst, tolerance, trials)


def _relative(a: Tensor, b: Tensor) -> float:
    size = max(float(a.abs().max()), float(b.abs().max()), 1e-300)
    return float((a - b).abs().max()) / size
