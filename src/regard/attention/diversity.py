"""How different the heads of a layer are: Jensen–Shannon divergence of their rows, and their rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from regard.arguments import instance
from regard.errors import OptionError, ShapeError


@dataclass(frozen=True)
class HeadDiversity:
    """How different heads are.

    Attributes:
        divergence: the mean Jensen–Shannon divergence of two heads in bits: 0 if all heads are equal, 1 if no
            two heads attend to the same key.
        pairs: the divergence of each pair of heads, (heads, heads).
        effective_rank: the effective rank (Roy & Vetterli 2007) of the heads as vectors: exp of the entropy
            of their singular values, from 1 (all heads proportional) to the number of heads (orthogonal).
    """

    divergence: float
    pairs: Tensor
    effective_rank: float

    def __str__(self) -> str:
        heads = len(self.pairs)
        return (
            f"{heads} head{'s' * (heads != 1)}, Jensen–Shannon divergence {self.divergence:.3f} bits, "
            f"effective rank {self.effective_rank:.2f} of {heads}"
        )


def head_diversity(weights: Tensor) -> HeadDiversity:
    """Compare the heads of attention weights (…, heads, Tq, Tk).

    >>> same, other = torch.eye(4), torch.eye(4).flip(0)
    >>> print(head_diversity(torch.stack([same, other])))
    2 heads, Jensen–Shannon divergence 1.000 bits, effective rank 2.00 of 2
    >>> print(head_diversity(torch.stack([same, same])))
    2 heads, Jensen–Shannon divergence 0.000 bits, effective rank 1.00 of 2

    Divergences are means over rows. Each row is first divided by its sum. A row is left out if some head
    attends to nothing there.
    """
    instance("weights", weights, Tensor, "a tensor (…, heads, Tq, Tk)")
    if weights.ndim < 3 or not weights.numel():
        raise ShapeError(f"weights must have shape (…, heads, Tq, Tk), got {tuple(weights.shape)}")
    weights = weights.detach().double()
    if not bool((weights >= 0).all()):
        raise OptionError(
            "the Jensen–Shannon divergence compares weights that are not negative; "
            "use a normalizer such as softmax"
        )
    heads = weights.movedim(-3, 0).flatten(1, -2)  # (heads, rows, Tk)
    heads = heads[:, (heads.sum(-1) > 0).all(0)]
    if not heads.shape[1]:
        raise OptionError("there is no row in which every head attends to something, so nothing to compare")
    rows = heads / heads.sum(-1, keepdim=True)
    pairs, entropies = weights.new_zeros(len(rows), len(rows)), _entropy(rows)
    for i, j in combinations(range(len(rows)), 2):
        # Jensen–Shannon divergence: H((p + q)/2) − (H(p) + H(q))/2
        bits = _entropy((rows[i] + rows[j]) / 2) - (entropies[i] + entropies[j]) / 2
        pairs[i, j] = pairs[j, i] = bits.clamp(0.0, 1.0).mean()
    count = len(rows) * (len(rows) - 1)
    divergence = float(pairs.sum() / count) if count else 0.0
    return HeadDiversity(divergence, pairs, _effective_rank(heads.flatten(1)))


def _entropy(p: Tensor) -> Tensor:
    """Entropy of distributions (…, keys) in bits."""
    return torch.special.entr(p).sum(-1) / math.log(2)


def _effective_rank(vectors: Tensor) -> float:
    """exp(H(s/Σs)) of the singular values s of (heads, rows · keys)."""
    values = torch.linalg.svdvals(vectors)
    return float(torch.special.entr(values / values.sum()).sum().exp())
