"""Bulk labelling: a few labels spread over many texts, and to their neighbours (after Zhou et al. 2004).

A text first leans to the labels whose examples it is near in the mean. Then it takes one half of that and one half of what its
nearest texts say, weighted by nearness, again and again until little changes; texts that are labelled keep theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, OptionError
from regard.files.progress import track
from regard.search.exact import nearest
from regard.search.hnsw import Graph

NEIGHBOURS, ROUNDS = 10, 50
LEANING, SHARPNESS = 0.05, 0.1  # what cosines are divided by: of texts with labels, of texts with each other
HEARD = 0.5  # how much of a text's label comes from its neighbours
MANY = 50_000


class SpreadLabels(NamedTuple):
    """The labels, and for each text its shares of them: (texts, labels), rows of sum 1."""

    labels: list[str]
    shares: NDArray[np.float32]

    def best(self) -> tuple[list[str], NDArray[np.float32]]:
        """The label of each text, and its share: how sure it is."""
        at = self.shares.argmax(1)
        return [self.labels[i] for i in at], self.shares[np.arange(len(at)), at]


def spread_labels(
    vectors: NDArray[np.float32],
    examples: Mapping[int, str],
    *,
    neighbours: int = NEIGHBOURS,
    threads: int = 0,
) -> SpreadLabels:
    """Label all texts from some: `examples` are labels by the places of their texts."""
    labels = sorted(set(examples.values()))
    if len(labels) < 2:
        said = f"all {len(examples)} examples are {labels[0]!r}" if labels else "there are no examples"
        raise DataError(f"{said}, and labels are spread between at least two; give examples of another label")
    if isinstance(neighbours, bool) or not isinstance(neighbours, int) or neighbours < 1:
        raise OptionError(f"neighbours is a whole number of at least 1, got {neighbours!r}")
    near, weights = _neighbours(vectors, min(neighbours, len(vectors) - 1), threads)
    places = np.fromiter(examples, np.int64)
    given = np.zeros((len(places), len(labels)), np.float32)
    given[np.arange(len(places)), [labels.index(examples[int(i)]) for i in places]] = 1
    own = _leaning(vectors, places, given)
    shares = own.copy()
    shares[places] = given
    with track(ROUNDS, "spreading labels", "rounds") as bar:
        for _ in range(ROUNDS):
            new = HEARD * np.einsum("tn,tnl->tl", weights, shares[near]) + (1 - HEARD) * own
            new[places] = given
            change = float(np.abs(new - shares).max())
            shares = new
            bar.advance()
            if change < 1e-4:
                break
    return SpreadLabels(labels, shares)


def _leaning(
    vectors: NDArray[np.float32], places: NDArray[np.int64], given: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Shares of the labels by the cosine with the mean of each one's examples, (texts, labels)."""
    means = given.T @ vectors[places]
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
    cosines = vectors @ means.T / LEANING
    shares = np.exp(cosines - cosines.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def _neighbours(
    vectors: NDArray[np.float32], count: int, threads: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The nearest other texts of each, and weights of sum 1."""
    with track(None, "finding neighbours"):
        if len(vectors) < MANY:
            near, _ = nearest([(0, vectors)], vectors, count + 1, np.array([], np.int64))
        else:
            graph = Graph(vectors.shape[1], threads=threads)
            graph.add(np.arange(len(vectors)), vectors)
            near = graph.near(vectors, count + 1)
    own = near == np.arange(len(near))[:, None]
    own[~own.any(1), -1] = True  # among equal texts one may not find itself: drop the last
    near = near[~own].reshape(len(near), count)
    cosines = np.einsum("td,tnd->tn", vectors, vectors[near])
    weights = np.exp((cosines - cosines.max(1, keepdims=True)) / SHARPNESS) * (near >= 0)
    return np.maximum(near, 0), (weights / weights.sum(1, keepdims=True)).astype(np.float32)
