"""Normalisers: from energies to weights, row by row.

Each takes (scores, allowed) and gives weights of the same shape. A masked weight is 0 under every one of them, and a row with
nothing to attend to is all zeros with zero gradient, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.errors import OptionError, ShapeError


def all_false(x: Tensor) -> bool:
    """Whether nothing is true, where asking costs little: not on a GPU, and not while torch.compile traces."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(x.any())


class Normalizer:
    """The parent of all normalisers. A row's weights depend on its allowed scores alone: kernels may leave out masked keys."""

    hides = True  # a score of −∞ gets the weight 0 exactly, by itself
    bears_nothing = False  # and so does every score of a row that is all −∞

    def __call__(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        if allowed is None:
            return self.rows(scores)
        hidden = ~allowed
        masked = scores.masked_fill(hidden, -math.inf)
        dead = hidden.all(-1, keepdim=True)
        if self.hides and (self.bears_nothing or all_false(dead)):
            return self.rows(masked)
        # A dead row is filled with zeros before the normaliser sees it, so that neither pass meets −∞ − −∞.
        return self.rows(masked.masked_fill(dead, 0.0)).masked_fill(hidden, 0.0)

    def rows(self, scores: Tensor) -> Tensor:
        """Weights of rows that each have at least one finite score; −∞ is a masked key."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Softmax(Normalizer):
    """a_j = exp(e_j/τ) / Σ exp(e/τ)."""

    def __init__(self, temperature: float = 1.0) -> None:
        if isinstance(temperature, Tensor) or not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
            raise OptionError(f"temperature must be a number above 0, got {temperature!r}; for τ → 0 use Hard()")
        self.temperature = float(temperature)

    def rows(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores / self.temperature if self.temperature != 1.0 else scores, -1)

    def __repr__(self) -> str:
        return f"Softmax(temperature={self.temperature:g})" if self.temperature != 1.0 else "Softmax()"


class Raw(Normalizer):
    """No normaliser: the weights are the energies themselves."""

    def __call__(self, scores: Tensor, allowed: Tensor | None = None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(~allowed, 0.0)


class Sigmoid(Normalizer):
    """Each key on its own: a_j = 1/(1 + exp(−e_j)); rows need not sum to 1."""

    bears_nothing = True

    def rows(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores)


class Hard(Normalizer):
    """All weight on the largest energy, the first of equals. No gradient reaches the energies."""

    def rows(self, scores: Tensor) -> Tensor:
        top = scores == scores.amax(-1, keepdim=True)
        first = top & (top.cumsum(-1) == 1)
        lost = scores.isnan().any(-1, keepdim=True)
        return first.to(scores.dtype).masked_fill(lost, math.nan)


class Entmax(Normalizer):
    """α-entmax (Peters, Niculae & Martins 2019): a_j = [(α−1)e_j − τ]₊^(1/(α−1)), τ such that the row sums to 1.

    α = 1 is softmax, α = 2 is sparsemax; in between, small weights become exactly 0. 1.5 and 2 are solved exactly by
    sorting, any other α by bisection and two differentiable Newton steps.
    """

    def __init__(self, alpha: float = 1.5) -> None:
        if isinstance(alpha, Tensor) or not isinstance(alpha, int | float) or not 1 <= alpha < math.inf:
            raise OptionError(f"alpha must be a number of at least 1, got {alpha!r}")
        self.alpha = float(alpha)

    def rows(self, scores: Tensor) -> Tensor:
        if self.alpha == 1.0:
            return torch.softmax(scores, -1)
        scores = scores - scores.detach().amax(-1, keepdim=True)
        if self.alpha == 2.0:
            return (scores - _sparsemax_threshold(scores)).clamp(min=0)
        if self.alpha == 1.5:
            half = scores / 2
            return (half - _entmax15_threshold(half)).clamp(min=0).square()
        return _entmax_bisect(scores * (self.alpha - 1), 1 / (self.alpha - 1))

    def __repr__(self) -> str:
        return f"Entmax(alpha={self.alpha:g})"


class Sparsemax(Entmax):
    """The point of the simplex nearest to the energies (Martins & Astudillo 2016): entmax with α = 2."""

    def __init__(self) -> None:
        super().__init__(2.0)

    def __repr__(self) -> str:
        return "Sparsemax()"


class CustomNormalizer(Normalizer):
    """Any function of the masked scores (−∞ where masked) that gives weights of the same shape. It is always given all keys."""

    hides = False

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def rows(self, scores: Tensor) -> Tensor:
        weights = self.function(scores)
        if not isinstance(weights, Tensor) or weights.shape != scores.shape:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ShapeError(f"the normaliser function gave {got} and must give {tuple(scores.shape)}")
        return weights

    def __repr__(self) -> str:
        return f"CustomNormalizer({getattr(self.function, '__name__', type(self.function).__name__)})"


@torch.no_grad()
def _ranked(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores from large to small with masked ones far below any support, and the ranks 1, 2, …"""
    # −∞ − −∞ would be NaN in the sums; a finite floor far below the support changes nothing.
    ordered = scores.masked_fill(scores == -math.inf, -1e4).sort(-1, descending=True).values
    rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    return ordered, rank, ordered.cumsum(-1)


def _supported(scores: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The scores down to the last one with any weight, 0 elsewhere, and how many they are."""
    inside = scores.detach() >= last
    return torch.where(inside, scores, 0.0), inside.sum(-1, keepdim=True)


def _sparsemax_threshold(scores: Tensor) -> Tensor:
    """τ = (Σ over the support − 1)/size. The support comes from sorting, which needs no gradient; τ itself is differentiable."""
    ordered, rank, total = _ranked(scores)
    size = (1 + rank * ordered > total).sum(-1, keepdim=True).clamp(min=1)
    kept, count = _supported(scores, ordered.gather(-1, size - 1))
    return (kept.sum(-1, keepdim=True) - 1) / count


def _entmax15_threshold(half: Tensor) -> Tensor:
    """τ = mean − √((1 − Σ(e − mean)²)/size) over the support (Peters et al. 2019, algorithm 2)."""
    ordered, rank, total = _ranked(half)
    mean = total / rank
    room = (1 - rank * (ordered.square().cumsum(-1) / rank - mean.square())) / rank
    size = (mean - room.clamp(min=0).sqrt() <= ordered).sum(-1, keepdim=True).clamp(min=1)
    kept, count = _supported(half, ordered.gather(-1, size - 1))
    middle = kept.sum(-1, keepdim=True) / count
    spread = kept.square().sum(-1, keepdim=True) / count - middle.square()
    return middle - (1 / count - spread).clamp(min=torch.finfo(half.dtype).tiny).sqrt()


def _entmax_bisect(scores: Tensor, power: float) -> Tensor:
    """[scores − τ]₊^power with rows that sum to 1; scores are (α−1)·energies with maximum 0."""
    with torch.no_grad():
        low = torch.full_like(scores[..., :1], -1.0)
        high = torch.zeros_like(low) - (1.0 / scores.shape[-1]) ** (1 / power)
        for _ in range(60):
            middle = (low + high) / 2
            enough = (scores - middle).clamp(min=0).pow(power).sum(-1, keepdim=True) >= 1
            low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
        tau = low
        inside = scores > tau

    def part(tau: Tensor, p: float) -> Tensor:
        base = torch.where(inside, scores - tau, torch.ones_like(scores)).clamp(min=torch.finfo(scores.dtype).tiny)
        return base.pow(p).masked_fill(~inside, 0.0)

    for _ in range(2):  # at the root, each Newton step makes one more derivative exact
        tau = tau + (part(tau, power).sum(-1, keepdim=True) - 1) / (power * part(tau, power - 1).sum(-1, keepdim=True))
    return part(tau, power)
