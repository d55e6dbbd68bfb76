"""Word links from attention weights: selection, and symmetrization of two directions.

A link is a pair (source word, target word), counted from 0. Weights are (target words, source words).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from regard import arguments
from regard.errors import OptionError
from regard.registry import Registry

Link = tuple[int, int]  # source word, target word
Links = frozenset[Link]

SYMMETRIZATIONS = Registry[Callable[[Links, Links], Links]]("symmetrization")


@dataclass(frozen=True)
class LinkSelection:
    """How links are selected.

    Attributes:
        threshold: select every link of at least this weight; by default each target word's strongest.
        mutual: select only pairs of words that are each other's strongest, by balanced weights.
        join: for two directions, "weights" (the geometric mean of the weights, and its mutual links) or the
            name of a symmetrization of the links.
    """

    threshold: float | None = None
    mutual: bool = False
    join: str = "weights"

    def __post_init__(self) -> None:
        if self.threshold is not None:
            arguments.number("threshold", self.threshold, 0, 1)
            if self.mutual:
                raise OptionError("mutual and threshold are two ways to select links; give one")
        if self.join != "weights" and self.join not in SYMMETRIZATIONS:
            names = ", ".join(["weights", *SYMMETRIZATIONS])
            raise OptionError(f"join must be one of {names}, got {arguments.quoted(self.join)}")

    def links(self, weights: Tensor) -> Links:
        """Select the links of one direction."""
        if self.threshold is not None:
            return at_least(weights, self.threshold)
        return mutual(weights) if self.mutual else strongest(weights)

    def joined(self, forward: Tensor, backward: Tensor) -> Links:
        """Select the links of two models, with weights (target, source) and (source, target)."""
        if self.join == "weights":
            mean = (forward * backward.T).sqrt()
            return mutual(mean) if self.threshold is None else at_least(mean, self.threshold)
        return SYMMETRIZATIONS[self.join](self.links(forward), flipped(self.links(backward)))


def strongest(weights: Tensor) -> Links:
    """Link each target word with its strongest source word, the first of equals; a row of zeros has no
    link.
    """
    if not weights.numel():
        return frozenset()
    weight, source = weights.max(-1)
    pairs = zip(source.tolist(), weight.tolist(), strict=True)
    return frozenset((s, t) for t, (s, w) in enumerate(pairs) if w > 0)


def at_least(weights: Tensor, threshold: float) -> Links:
    """Link every pair of at least this weight."""
    return frozenset((s, t) for t, s in (weights >= threshold).nonzero().tolist())


def balanced(weights: Tensor) -> Tensor:
    """√(w · w/Σ): multiply by the share of the source word's total, so that words which attract all get
    less.
    """
    total = weights.sum(-2, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return (weights * weights / total).sqrt()


def mutual(weights: Tensor) -> Links:
    """Link words that are each other's strongest, by balanced weights: few links with high precision."""
    even = balanced(weights)
    return strongest(even) & flipped(strongest(even.T))


def pharaoh(links: Collection[Link]) -> str:
    """Format links as "0-0 1-2": source word - target word, sorted."""
    return " ".join(f"{s}-{t}" for s, t in sorted(links))


def flipped(links: Iterable[Link]) -> Links:
    """Swap source and target words."""
    return frozenset((t, s) for s, t in links)


@SYMMETRIZATIONS.add("intersection")
def intersection(forward: Links, backward: Links) -> Links:
    """The links of both directions: high precision."""
    return forward & backward


@SYMMETRIZATIONS.add("union")
def union(forward: Links, backward: Links) -> Links:
    """The links of either direction: high recall."""
    return forward | backward


_NEIGHBOURS = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))


@SYMMETRIZATIONS.add("grow-diag")
def grow_diag(forward: Links, backward: Links) -> Links:
    """The intersection, grown by neighbours from the union (Och and Ney 2003; Koehn et al. 2003).

    A neighbour, also a diagonal one, is added while one of its words has no link.
    """
    links, candidates = set(forward & backward), forward | backward
    sources, targets = {s for s, _ in links}, {t for _, t in links}
    source_count = max((s for s, _ in candidates), default=-1) + 1
    target_count = max((t for _, t in candidates), default=-1) + 1
    before = -1
    while before != len(links):
        before = len(links)
        for t, s in product(range(target_count), range(source_count)):  # target by target, as the original
            for ds, dt in _NEIGHBOURS if (s, t) in links else ():
                near = (s + ds, t + dt)
                is_new = near in candidates and near not in links
                if is_new and (near[0] not in sources or near[1] not in targets):
                    links.add(near)
                    sources.add(near[0])
                    targets.add(near[1])
    return frozenset(links)


@SYMMETRIZATIONS.add("grow-diag-final-and")
def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """`grow_diag`, then the links of each direction between two words without links."""
    links = set(grow_diag(forward, backward))
    sources, targets = {s for s, _ in links}, {t for _, t in links}
    for direction in (forward, backward):
        for s, t in sorted(direction, key=lambda link: link[::-1]):
            if s not in sources and t not in targets:
                links.add((s, t))
                sources.add(s)
                targets.add(t)
    return frozenset(links)
