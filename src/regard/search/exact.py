"""The nearest of all, by comparing with every one: a matrix product in blocks that fit the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 14  # vectors compared at a time
QUERIES = 256

Numbers = NDArray[np.int64]
Vectors = NDArray[np.float32]


def nearest(
    parts: Sequence[tuple[int, Vectors]], queries: Vectors, k: int, without: Numbers
) -> tuple[Numbers, Vectors]:
    """Numbers and cosines of the k nearest, best first, (queries, k); of equals the lowest number; −1 and −∞ where there are no
    more. `parts` are vectors of length 1 with the number of their first; `without` are numbers that do not count.
    """
    numbers, cosines = (
        np.full((len(queries), k), -1, np.int64),
        np.full((len(queries), k), -np.inf, np.float32),
    )
    for at in range(0, len(queries), QUERIES):
        some = slice(at, at + QUERIES)
        for first, vectors in parts:
            for start in range(0, len(vectors), BLOCK):
                block = np.asarray(vectors[start : start + BLOCK])
                found = queries[some] @ block.T
                gone = (
                    without[(without >= first + start) & (without < first + start + len(block))]
                    - first
                    - start
                )
                found[:, gone] = -np.inf
                _merge(numbers[some], cosines[some], found, first + start)
    return numbers, cosines


def _merge(numbers: Numbers, cosines: Vectors, found: Vectors, first: int) -> None:
    """Put the best of a block among the best so far."""
    k = numbers.shape[1]
    for i, row in enumerate(found):
        better = np.flatnonzero(row > cosines[i, -1]) if np.isfinite(cosines[i, -1]) else best(row, k)
        if len(better) > k:
            better = better[best(row[better], k)]
        both = np.concatenate([cosines[i], row[better]])
        order = np.argsort(-both, kind="stable")[:k]
        numbers[i] = np.where(np.isfinite(both), np.concatenate([numbers[i], first + better]), -1)[order]
        cosines[i] = both[order]


def best(scores: NDArray[Any], k: int) -> Numbers:
    """Places of the k largest, best first; of equals the first."""
    if len(scores) > k:
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > least)
        places = np.sort(np.concatenate([above, np.flatnonzero(scores == least)[: k - len(above)]]))
    else:
        places = np.arange(len(scores))
    return places[np.argsort(-scores[places], kind="stable")]
