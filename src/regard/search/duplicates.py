"""Texts that say the same: pairs of vectors whose cosine reaches a threshold, and the groups they form."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import OptionError
from regard.files.progress import track
from regard.search.hnsw import Graph

BLOCK = 1024
MANY = 50_000  # texts from which on a graph is asked; comparing all pairs of so many takes a core about 20 seconds
NEIGHBOURS = 32  # of a text that a graph is asked for


class Pair(NamedTuple):
    """Two texts by their places, the first one first, and their cosine."""

    first: int
    second: int
    cosine: float


def pairs(
    vectors: NDArray[np.float32], threshold: float, *, exact: bool | None = None, threads: int = 0
) -> list[Pair]:
    """All pairs of at least that cosine, the most alike first.

    From 50,000 texts on a graph is asked for 32 neighbours of each, unless `exact`: so of a large group some pairs are missed,
    and few of a small one.
    """
    if not -1 <= threshold <= 1:
        raise OptionError(f"the threshold is a cosine between -1 and 1, got {threshold!r}")
    exact = len(vectors) < MANY if exact is None else exact
    found = _all(vectors, threshold) if exact else _by_graph(vectors, threshold, threads)
    return sorted(found, key=lambda pair: (-pair.cosine, pair.first, pair.second))


def groups(found: list[Pair]) -> list[list[int]]:
    """Texts that hang together by pairs, each group in order, the largest first."""
    of: dict[int, int] = {}

    def root(i: int) -> int:
        while of.setdefault(i, i) != i:
            of[i] = i = of[of[i]]
        return i

    for pair in found:
        a, b = sorted((root(pair.first), root(pair.second)))
        of[b] = a
    members: dict[int, list[int]] = {}
    for i in sorted(of):
        members.setdefault(root(i), []).append(i)
    return sorted(members.values(), key=lambda group: (-len(group), group[0]))


def _all(vectors: NDArray[np.float32], threshold: float) -> list[Pair]:
    found: list[Pair] = []
    with track(len(vectors), "comparing", "texts") as bar:
        for start in range(0, len(vectors), BLOCK):
            cosines = vectors[start : start + BLOCK] @ vectors[start:].T
            rows, columns = np.nonzero(np.triu(cosines >= threshold, 1))
            found += [
                Pair(start + int(i), start + int(j), float(cosines[i, j]))
                for i, j in zip(rows, columns, strict=True)
            ]
            bar.advance(len(cosines))
    return found


def _by_graph(vectors: NDArray[np.float32], threshold: float, threads: int) -> list[Pair]:
    graph = Graph(vectors.shape[1], threads=threads)
    graph.add(np.arange(len(vectors)), vectors)
    found: dict[tuple[int, int], float] = {}
    with track(len(vectors), "comparing", "texts") as bar:
        for start in range(0, len(vectors), BLOCK):
            near = graph.near(vectors[start : start + BLOCK], NEIGHBOURS)
            for i, row in enumerate(near, start):
                others = row[(row >= 0) & (row != i)]
                for j, cosine in zip(others, vectors[others] @ vectors[i], strict=True):
                    if cosine >= threshold:
                        found[min(i, int(j)), max(i, int(j))] = float(cosine)
            bar.advance(len(near))
    return [Pair(i, j, cosine) for (i, j), cosine in found.items()]
