"""Label spreading (after Zhou et al. 2004): label many texts from a few labelled examples.

The prior of a text is the softmax of its cosine with the mean example of each label. Each iteration mixes the
prior with the mean label distribution of the nearest neighbours, until little changes. Examples keep their
labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, OptionError
from regard.files.progress import track
from regard.search.exact import nearest
from regard.search.hnsw import HnswGraph

NEIGHBOURS, MAX_ITER = 10, 50
LABEL_TEMPERATURE, NEIGHBOUR_TEMPERATURE = 0.05, 0.1  # softmax temperatures of cosines
ALPHA = 0.5  # share of the neighbours; the rest is the prior
MIN_GRAPH_SIZE = 50_000


class SpreadLabels(NamedTuple):
    """The labels, and a label distribution for each text: (texts, labels), rows sum to 1."""

    labels: list[str]
    probabilities: NDArray[np.float32]

    def best(self) -> tuple[list[str], NDArray[np.float32]]:
        """The most probable label of each text, and its probability."""
        best = self.probabilities.argmax(1)
        return [self.labels[i] for i in best], self.probabilities[np.arange(len(best)), best]


def spread_labels(
    vectors: NDArray[np.float32],
    examples: Mapping[int, str],
    *,
    neighbours: int = NEIGHBOURS,
    threads: int = 0,
) -> SpreadLabels:
    """Label all texts from the labelled ones; `examples` maps positions of texts to labels."""
    labels = sorted(set(examples.values()))
    if len(labels) < 2:
        problem = f"all {len(examples)} examples are {labels[0]!r}" if labels else "there are no examples"
        raise DataError(
            f"{problem}, but label spreading needs at least two labels; give examples of another label"
        )
    if isinstance(neighbours, bool) or not isinstance(neighbours, int) or neighbours < 1:
        raise OptionError(f"neighbours must be an integer of at least 1, got {neighbours!r}")
    nearest_texts, weights = _weighted_neighbours(vectors, min(neighbours, len(vectors) - 1), threads)
    positions = np.fromiter(examples, np.int64)
    one_hot = np.zeros((len(positions), len(labels)), np.float32)
    one_hot[np.arange(len(positions)), [labels.index(examples[int(i)]) for i in positions]] = 1
    prior = _prior(vectors, positions, one_hot)
    probabilities = prior.copy()
    probabilities[positions] = one_hot
    with track(MAX_ITER, "spreading labels", "iterations") as bar:
        for _ in range(MAX_ITER):
            new = ALPHA * np.einsum("tn,tnl->tl", weights, probabilities[nearest_texts]) + (1 - ALPHA) * prior
            new[positions] = one_hot
            change = float(np.abs(new - probabilities).max())
            probabilities = new
            bar.advance()
            if change < 1e-4:
                break
    return SpreadLabels(labels, probabilities)


def _prior(
    vectors: NDArray[np.float32], positions: NDArray[np.int64], one_hot: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Softmax over labels of the cosine with the mean of each label's examples, (texts, labels)."""
    means = one_hot.T @ vectors[positions]  # (labels, width)
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
    scores = vectors @ means.T / LABEL_TEMPERATURE
    exp = np.exp(scores - scores.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)


def _weighted_neighbours(
    vectors: NDArray[np.float32], count: int, threads: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The nearest other texts of each text, and weights that sum to 1; both (texts, count)."""
    with track(None, "finding neighbours"):
        if len(vectors) < MIN_GRAPH_SIZE:
            near, _ = nearest([(0, vectors)], vectors, count + 1, np.array([], np.int64))
        else:
            graph = HnswGraph(vectors.shape[1], threads=threads)
            graph.add(np.arange(len(vectors)), vectors)
            near = graph.search(vectors, count + 1)
    own = near == np.arange(len(near))[:, None]
    own[~own.any(1), -1] = True  # with equal texts the own one may be missing: drop the last instead
    near = near[~own].reshape(len(near), count)
    cosines = np.einsum("td,tnd->tn", vectors, vectors[near])
    weights = np.exp((cosines - cosines.max(1, keepdims=True)) / NEIGHBOUR_TEMPERATURE) * (near >= 0)
    return np.maximum(near, 0), (weights / weights.sum(1, keepdims=True)).astype(np.float32)
