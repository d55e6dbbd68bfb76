"""What happens when tokens, or their attention weights, are removed in the order of an explanation.

Tokens: comprehensiveness and sufficiency (DeYoung et al. 2020). Weights: decision flips (Serrano & Smith
2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.edits import Mapped
from regard.evaluation.explanation.probe import Probe

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)  # of the tokens; DeYoung et al. 2020, section 5


@dataclass(frozen=True)
class Erasure:
    """Fall of the predicted class's probability at each share k of the tokens.

    Attributes:
        comprehensiveness: p(text) − p(text without its top k): large if the tokens were needed.
        sufficiency: p(text) − p(top k alone): small, or negative, if the tokens are enough.
    """

    comprehensiveness: tuple[float, ...]
    sufficiency: tuple[float, ...]


def erasure(probe: Probe, scores: Tensor, shares: Sequence[float] = SHARES) -> Erasure:
    """Comprehensiveness and sufficiency of an explanation; the top k are at least one token."""
    return erasures(probe, [scores], shares)[0]


def erasures(probe: Probe, explanations: Sequence[Tensor], shares: Sequence[float] = SHARES) -> list[Erasure]:
    """`erasure` of several explanations at once; sets of tokens that they share are removed once."""
    counts = [min(probe.count, max(1, round(share * probe.count))) for share in shares]
    removed = []
    for scores in explanations:
        order = scores.argsort(descending=True, stable=True).tolist()
        top, others = [order[:count] for count in counts], [order[count:] for count in counts]
        removed.append([frozenset(part) for part in top + others])
    distinct = {part: row for row, part in enumerate(dict.fromkeys(p for parts in removed for p in parts))}
    p = probe.without([sorted(part) for part in distinct])[:, probe.predicted]
    fall = (float(probe.distribution[probe.predicted]) - p).tolist()
    falls = [tuple(fall[distinct[part]] for part in parts) for parts in removed]
    return [Erasure(values[: len(counts)], values[len(counts) :]) for values in falls]


def without_weights(probe: Probe, removed: Sequence[Sequence[int]]) -> Tensor:
    """Distributions with the attention to these features set to 0 and the rest rescaled, (rows, classes).

    Where no weight is left, attention adds nothing.
    """
    parts = []
    for start in range(0, len(removed), probe.batch):
        rows = removed[start : start + probe.batch]
        width = next(iter(probe.weights.values())).shape[-1]
        keep = torch.ones(len(rows), 1, 1, width)
        for row, features in enumerate(rows):
            keep[row, ..., [probe.given.keys[at] for at in features]] = 0

        def remove(weights: Tensor, keep: Tensor = keep) -> Tensor:
            left = weights * keep.to(weights)
            return left / left.sum(-1, keepdim=True).clamp(min=1e-12)

        parts.append(probe.under(Mapped(remove), len(rows)))
    return torch.cat(parts)


def flips(probe: Probe, removed: Sequence[Sequence[int]]) -> list[bool]:
    """Whether the predicted class changes when the weights of these features are removed."""
    return (without_weights(probe, removed).argmax(-1) != probe.predicted).tolist()


def flip_share(probe: Probe, scores: Tensor) -> float:
    """The share of features whose weights must be removed, highest score first, to change the decision.

    1 if it does not change until all are removed.
    """
    order = scores.argsort(descending=True, stable=True).tolist()
    changed = flips(probe, [order[:count] for count in range(1, probe.count + 1)])
    first = changed.index(True) + 1 if True in changed else probe.count
    return first / probe.count


def mean_defined(values: Sequence[float]) -> float:
    """The mean of the values that are not NaN."""
    defined = [value for value in values if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan
