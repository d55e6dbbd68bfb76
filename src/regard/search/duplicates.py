"""Near-duplicate detection: pairs of texts whose cosine similarity reaches a threshold, and their groups."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import OptionError
from regard.files.progress import track
from regard.search.hnsw import HnswGraph

BLOCK = 1024
# HNSW is used from this many texts on. Comparing all pairs of so many takes about 20 s on one core.
MIN_GRAPH_SIZE = 50_000
NEIGHBOURS = 32  # per text, when HNSW is used


class Pair(NamedTuple):
    """Positions of two texts, first < second, and their cosine similarity."""

    first: int
    second: int
    cosine: float


def find_pairs(
    vectors: NDArray[np.float32], threshold: float, *, exact: bool | None = None, threads: int = 0
) -> list[Pair]:
    """All pairs with a cosine of at least `threshold`, most similar first.

    From 50,000 texts on, unless `exact`, only the 32 approximate nearest neighbours of each text (HNSW) are
    compared. This misses pairs in groups of more than 32 near-duplicates, and few others.
    """
    if not -1 <= threshold <= 1:
        raise OptionError(f"the threshold must be a cosine between -1 and 1, got {threshold!r}")
    exact = len(vectors) < MIN_GRAPH_SIZE if exact is None else exact
    pairs = _exact_pairs(vectors, threshold) if exact else _hnsw_pairs(vectors, threshold, threads)
    return sorted(pairs, key=lambda pair: (-pair.cosine, pair.first, pair.second))


def group_pairs(pairs: list[Pair]) -> list[list[int]]:
    """Connected components of the pairs (union-find); each group ascending, largest group first."""
    parent: dict[int, int] = {}

    def root(i: int) -> int:
        while parent.setdefault(i, i) != i:
            parent[i] = i = parent[parent[i]]
        return i

    for pair in pairs:
        a, b = sorted((root(pair.first), root(pair.second)))
        parent[b] = a
    members: dict[int, list[int]] = {}
    for i in sorted(parent):
        members.setdefault(root(i), []).append(i)
    return sorted(members.values(), key=lambda group: (-len(group), group[0]))


def _exact_pairs(vectors: NDArray[np.float32], threshold: float) -> list[Pair]:
    pairs: list[Pair] = []
    with track(len(vectors), "comparing", "texts") as bar:
        for start in range(0, len(vectors), BLOCK):
            cosines = vectors[start : start + BLOCK] @ vectors[start:].T
            rows, columns = np.nonzero(np.triu(cosines >= threshold, 1))
            pairs += [
                Pair(start + int(i), start + int(j), float(cosines[i, j]))
                for i, j in zip(rows, columns, strict=True)
            ]
            bar.advance(len(cosines))
    return pairs


def _hnsw_pairs(vectors: NDArray[np.float32], threshold: float, threads: int) -> list[Pair]:
    graph = HnswGraph(vectors.shape[1], threads=threads)
    graph.add(np.arange(len(vectors)), vectors)
    cosines: dict[tuple[int, int], float] = {}
    with track(len(vectors), "comparing", "texts") as bar:
        for start in range(0, len(vectors), BLOCK):
            neighbours = graph.search(vectors[start : start + BLOCK], NEIGHBOURS)
            for i, row in enumerate(neighbours, start):
                others = row[(row >= 0) & (row != i)]
                for j, cosine in zip(others, vectors[others] @ vectors[i], strict=True):
                    if cosine >= threshold:
                        cosines[min(i, int(j)), max(i, int(j))] = float(cosine)
            bar.advance(len(neighbours))
    return [Pair(i, j, cosine) for (i, j), cosine in cosines.items()]
