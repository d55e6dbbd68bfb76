"""Exact nearest-neighbour search: blockwise matrix products with all vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 14  # vectors compared at a time
QUERIES = 256  # queries compared at a time

Numbers = NDArray[np.int64]
Vectors = NDArray[np.float32]


def nearest(
    segments: Sequence[tuple[int, Vectors]], queries: Vectors, k: int, excluded: Numbers
) -> tuple[Numbers, Vectors]:
    """Numbers and cosines of the k nearest vectors, best first, each (queries, k).

    Ties go to the lower number; missing results are −1 and −∞. `segments` holds (number of the first vector,
    unit vectors) pairs; numbers in `excluded` are skipped.
    """
    numbers, cosines = (
        np.full((len(queries), k), -1, np.int64),
        np.full((len(queries), k), -np.inf, np.float32),
    )
    for query in range(0, len(queries), QUERIES):
        rows = slice(query, query + QUERIES)
        for first, vectors in segments:
            for start in range(0, len(vectors), BLOCK):
                block = np.asarray(vectors[start : start + BLOCK])
                block_start = first + start
                block_cosines = queries[rows] @ block.T  # (queries, block)
                in_block = (excluded >= block_start) & (excluded < block_start + len(block))
                block_cosines[:, excluded[in_block] - block_start] = -np.inf
                _merge(numbers[rows], cosines[rows], block_cosines, block_start)
    return numbers, cosines


def _merge(numbers: Numbers, cosines: Vectors, block_cosines: Vectors, first: int) -> None:
    """Merge the top k of a block into the top k so far, in place."""
    k = numbers.shape[1]
    for i, row in enumerate(block_cosines):
        better = np.flatnonzero(row > cosines[i, -1]) if np.isfinite(cosines[i, -1]) else top_k(row, k)
        if len(better) > k:
            better = better[top_k(row[better], k)]
        both = np.concatenate([cosines[i], row[better]])
        order = np.argsort(-both, kind="stable")[:k]
        numbers[i] = np.where(np.isfinite(both), np.concatenate([numbers[i], first + better]), -1)[order]
        cosines[i] = both[order]


def top_k(scores: NDArray[Any], k: int) -> Numbers:
    """Positions of the k largest scores, best first; ties go to the first."""
    if len(scores) > k:
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > threshold)
        places = np.sort(np.concatenate([above, np.flatnonzero(scores == threshold)[: k - len(above)]]))
    else:
        places = np.arange(len(scores))
    return places[np.argsort(-scores[places], kind="stable")]
