"""Compare two rankings or two distributions, and summarize many comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

RESAMPLES = 2000  # of the bootstrap
CONFIDENCE = 0.95


def kendall_tau(x: Tensor, y: Tensor) -> float:
    """Kendall's τ-b of two score vectors (n,); NaN if n < 2 or all scores of one are equal.

    τ-b = Σ sign(xᵢ−xⱼ) sign(yᵢ−yⱼ) / √(pairs untied in x · pairs untied in y), over all pairs (Kendall 1945).
    """
    x, y = (v.detach().cpu().double() for v in (x, y))
    order_x, order_y = (torch.sign(v[:, None] - v[None, :]) for v in (x, y))  # (n, n)
    untied = float(order_x.abs().sum()) * float(order_y.abs().sum())
    return float((order_x * order_y).sum()) / math.sqrt(untied) if untied else math.nan


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """½ Σ |p − q| over the last axis: 0 for equal distributions, 1 for disjoint ones."""
    return (p - q).abs().sum(-1) / 2


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Jensen–Shannon divergence over the last axis in nats: 0 for equal distributions, log 2 for disjoint."""
    entropy = torch.special.entr  # −p log p, and 0 at 0
    mean = (p + q) / 2
    divergence = entropy(mean).sum(-1) - (entropy(p).sum(-1) + entropy(q).sum(-1)) / 2
    return divergence.clamp(min=0)  # rounding


@dataclass(frozen=True)
class Mean:
    """A mean over examples with its 95 % confidence interval.

    Attributes:
        value: the mean; None if the metric is defined for no example.
        low, high: percentiles of bootstrap means; None for fewer than two examples.
        std: the standard deviation of the examples; None for fewer than two.
        count: examples for which the metric is defined.
    """

    value: float | None
    low: float | None
    high: float | None
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float], seed: int = 0) -> Mean:
        """The mean of the values that are not NaN."""
        defined = np.array([v for v in values if not math.isnan(v)], dtype=np.float64)
        if not len(defined):
            return cls(None, None, None, None, 0)
        if len(defined) == 1:
            return cls(float(defined[0]), None, None, None, 1)
        draws = np.random.default_rng(seed).integers(len(defined), size=(RESAMPLES, len(defined)))
        tail = 100 * (1 - CONFIDENCE) / 2
        low, high = np.percentile(defined[draws].mean(1), [tail, 100 - tail])
        return cls(float(defined.mean()), float(low), float(high), float(defined.std(ddof=1)), len(defined))

    def as_dict(self) -> dict[str, float | int | None]:
        """Everything, for JSON."""
        return asdict(self)
