"""Ways to search: by vectors, by words, or by both together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from regard.errors import OptionError
from regard.pipelines.embed import embed
from regard.search.index import Index

DEPTH, RANK = (
    100,
    60,
)  # documents of each list that are joined; what is added to a rank, as Cormack et al. 2009 have it


class Hit(NamedTuple):
    """A document that was found, by its number, and how well it fits; scores of two ways do not compare."""

    number: int
    score: float


class SearchMethod(Protocol):
    """Finds the k best documents for each query, best first."""

    def search(self, index: Index, queries: Sequence[str], k: int) -> list[list[Hit]]: ...


@dataclass(frozen=True)
class VectorSearch:
    """The documents whose vectors are nearest: they may say the same in other words."""

    model: Any
    exact: bool = False

    def search(self, index: Index, queries: Sequence[str], k: int) -> list[list[Hit]]:
        numbers, cosines = index.near(embed(list(queries), self.model), _count(k), exact=self.exact)
        return [
            [Hit(int(n), float(c)) for n, c in zip(*row, strict=True) if n >= 0]
            for row in zip(numbers, cosines, strict=True)
        ]


@dataclass(frozen=True)
class Bm25Search:
    """The documents that hold the words of the query, rare ones above all: BM25. Needs no model."""

    def search(self, index: Index, queries: Sequence[str], k: int) -> list[list[Hit]]:
        found = [index.words(query, _count(k)) for query in queries]
        return [[Hit(int(n), float(s)) for n, s in zip(*each, strict=True)] for each in found]


@dataclass(frozen=True)
class HybridSearch:
    """Several ways joined by rank, Σ 1/(60 + rank) over their lists (reciprocal rank fusion, Cormack et al. 2009): scores need
    not compare, and a document that two lists have rises.
    """

    ways: tuple[SearchMethod, ...]

    def search(self, index: Index, queries: Sequence[str], k: int) -> list[list[Hit]]:
        deep = max(DEPTH, _count(k))
        lists = [way.search(index, queries, deep) for way in self.ways]
        return [_joined(found, k) for found in zip(*lists, strict=True)]


WAYS = ("hybrid", "vectors", "bm25")


def make_way(by: str, model: Any = None, *, exact: bool = False) -> SearchMethod:
    """The way of a name; all but bm25 need the model that made the index."""
    if by not in WAYS:
        raise OptionError(f"a way to search is one of {', '.join(WAYS)}, got {by!r}")
    vectors = VectorSearch(model, exact)
    return (
        Bm25Search()
        if by == "bm25"
        else vectors
        if by == "vectors"
        else HybridSearch((vectors, Bm25Search()))
    )


def as_record(index: Index, query: str, hits: Sequence[Hit]) -> dict[str, Any]:
    """A question and the documents that were found, ready for JSON."""
    return {
        "query": query,
        "found": [{**index.document(hit.number)._asdict(), "score": round(hit.score, 6)} for hit in hits],
    }


def _joined(lists: Sequence[list[Hit]], k: int) -> list[Hit]:
    scores: dict[int, float] = {}
    for found in lists:
        for rank, hit in enumerate(found, 1):
            scores[hit.number] = scores.get(hit.number, 0.0) + 1 / (RANK + rank)
    return [
        Hit(number, score)
        for number, score in sorted(scores.items(), key=lambda each: (-each[1], each[0]))[:k]
    ]


def _count(k: int) -> int:
    if isinstance(k, (bool, np.bool_)) or not isinstance(k, (int, np.integer)) or k < 1:
        raise OptionError(f"the number of documents to find is a whole number of at least 1, got {k!r}")
    return int(k)
