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
NEIGHBOUR_WEIGHT = 0.3  # joined weight of a link that is added beside a mutual one; see docs/alignment.md


@dataclass(frozen=True)
class LinkSelection:
    """How links are selected.

    Attributes:
        threshold: select every link of at least this weight; by default each target word's strongest. With
            `mutual`, and for joined weights: leave out links of less weight.
        mutual: select only pairs of words that are each other's strongest, by balanced weights.
        symmetrize: how two directions are joined. "weights" (default): the mutual links of the geometric mean
            of their weights, and unless `mutual` also neighbours of these links. The name of a symmetrization
            joins the links of each direction. "none": one direction.
    """

    threshold: float | None = None
    mutual: bool = False
    symmetrize: str | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            arguments.number("threshold", self.threshold, 0, 1)
        names = ["weights", *SYMMETRIZATIONS, "none"]
        if self.symmetrize is not None and self.symmetrize not in names:
            raise OptionError(
                f"symmetrize must be one of {', '.join(names)}, got {arguments.quoted(self.symmetrize)}"
            )

    def links(self, weights: Tensor) -> Links:
        """Select the links of one direction."""
        if self.mutual:
            return mutual(weights, self.threshold)
        return strongest(weights) if self.threshold is None else at_least(weights, self.threshold)

    def joined(self, forward: Tensor, backward: Tensor) -> Links:
        """Select the links of two directions, with weights (target, source) and (source, target)."""
        if self.symmetrize == "none":
            return self.links(forward)
        if self.symmetrize in (None, "weights"):
            weights = (forward * backward.T).sqrt()
            links = mutual(weights, self.threshold)
            strong = at_least(weights, max(NEIGHBOUR_WEIGHT, self.threshold or 0))
            return links if self.mutual else grown(links, strong)
        return SYMMETRIZATIONS[self.symmetrize](self.links(forward), flipped(self.links(backward)))


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


def mutual(weights: Tensor, threshold: float | None = None) -> Links:
    """Link words that are each other's strongest, by balanced weights: few links with high precision.

    With `threshold`, only links of at least this weight, which is not balanced.
    """
    even = balanced(weights)
    links = strongest(even) & flipped(strongest(even.T))
    return links if threshold is None else links & at_least(weights, threshold)


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


def grown(start: Links, candidates: Links) -> Links:
    """Add candidates that touch a link, also diagonally, and of which one word has no link yet, until none is
    left.
    """
    links = set(start)
    sources, targets = {s for s, _ in links}, {t for _, t in links}
    candidates = candidates | start
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


@SYMMETRIZATIONS.add("grow-diag")
def grow_diag(forward: Links, backward: Links) -> Links:
    """The intersection, grown by neighbours from the union (Och and Ney 2003; Koehn et al. 2003)."""
    return grown(forward & backward, forward | backward)


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
