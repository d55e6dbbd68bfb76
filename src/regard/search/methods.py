"""Search methods: embeddings, BM25, and hybrid search by reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from regard.errors import OptionError
from regard.pipelines.embed import embed
from regard.search.index import Index

FUSION_DEPTH = 100  # results of each method that are fused
RRF_K = 60  # constant of reciprocal rank fusion (Cormack et al. 2009)


class Hit(NamedTuple):
    """A result: document number and score. Scores of different methods are not comparable."""

    number: int
    score: float


class SearchMethod(Protocol):
    """Returns the k best documents for each query, best first."""

    def search(self, index: Index, queries: Sequence[str], k: int) -> list[list[Hit]]: ...


@dataclass(frozen=True)
class VectorSearch:
    """Dense retrieval: the documents whose embeddings have the highest cosine with the query."""

    model: Any
    exact: bool = False

    def search(self, index: Index, queries: Sequence[str], k: int) -> list[list[Hit]]:
        numbers, cosines = index.nearest(embed(list(queries), self.model), _count(k), exact=self.exact)
        return [
            [Hit(int(n), float(c)) for n, c in zip(*row, strict=True) if n >= 0]
            for row in zip(numbers, cosines, strict=True)
        ]


@dataclass(frozen=True)
class Bm25Search:
    """BM25: documents that contain words of the query, rare words weighing more. Needs no model."""

    def search(self, index: Index, queries: Sequence[str], k: int) -> list[list[Hit]]:
        results = [index.bm25_search(query, _count(k)) for query in queries]
        return [[Hit(int(n), float(s)) for n, s in zip(*result, strict=True)] for result in results]


@dataclass(frozen=True)
class HybridSearch:
    """Reciprocal rank fusion of several methods: score = Σ 1/(60 + rank) (Cormack et al. 2009)."""

    methods: tuple[SearchMethod, ...]

    def search(self, index: Index, queries: Sequence[str], k: int) -> list[list[Hit]]:
        depth = max(FUSION_DEPTH, _count(k))
        lists = [method.search(index, queries, depth) for method in self.methods]
        return [_fuse(rankings, k) for rankings in zip(*lists, strict=True)]


METHODS = ("hybrid", "vectors", "bm25")


def make_method(by: str, model: Any = None, *, exact: bool = False) -> SearchMethod:
    """Return the search method of this name; all but bm25 need the model of the index."""
    if by not in METHODS:
        raise OptionError(f"the search method must be one of {', '.join(METHODS)}, got {by!r}")
    if by == "bm25":
        return Bm25Search()
    vectors = VectorSearch(model, exact)
    return vectors if by == "vectors" else HybridSearch((vectors, Bm25Search()))


def as_record(index: Index, query: str, hits: Sequence[Hit]) -> dict[str, Any]:
    """A query and the documents of its hits, ready for JSON."""
    return {
        "query": query,
        "documents": [{**index.document(hit.number)._asdict(), "score": round(hit.score, 6)} for hit in hits],
    }


def _fuse(rankings: Sequence[list[Hit]], k: int) -> list[Hit]:
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, 1):
            scores[hit.number] = scores.get(hit.number, 0.0) + 1 / (RRF_K + rank)
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
    return [Hit(number, score) for number, score in best]


def _count(k: int) -> int:
    if isinstance(k, (bool, np.bool_)) or not isinstance(k, (int, np.integer)) or k < 1:
        raise OptionError(f"the number of results must be an integer of at least 1, got {k!r}")
    return int(k)
