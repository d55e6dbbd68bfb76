"""Retrieval metrics: nDCG, average precision, recall, and retrieval of paired texts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.text_files import lines
from regard.errors import DataError

Qrels = dict[str, dict[str, int]]  # query → document → relevance; missing or ≤ 0 means not relevant


def ndcg(ranking: Sequence[str], relevant: Mapping[str, int], k: int = 10) -> float:
    """nDCG@k: Σ_r gain_r / log₂(r + 1) over ranks r ≤ k, divided by its maximum (Järvelin & Kekäläinen 2002).

    The gain is the relevance, or 0 if negative.
    """
    discount = 1 / np.log2(np.arange(2, k + 2))
    gains = [max(0, relevant.get(document, 0)) for document in ranking[:k]]
    best = sorted((value for value in relevant.values() if value > 0), reverse=True)[:k]
    return float(np.dot(gains, discount[: len(gains)]) / np.dot(best, discount[: len(best)])) if best else 0.0


def average_precision(ranking: Sequence[str], relevant: Collection[str]) -> float:
    """Mean over relevant documents of the precision at their rank; 0 for documents not retrieved."""
    retrieved, total = 0, 0.0
    for rank, document in enumerate(ranking, 1):
        if document in relevant:
            retrieved += 1
            total += retrieved / rank
    return total / len(relevant) if relevant else 0.0


def recall(ranking: Sequence[str], relevant: Collection[str], k: int = 100) -> float:
    """Recall@k: share of relevant documents among the first k."""
    return len(set(ranking[:k]) & set(relevant)) / len(relevant) if relevant else 0.0


@dataclass(frozen=True)
class RetrievalScores:
    """Means over the queries that have a relevant document."""

    queries: int
    ndcg10: float
    average_precision: float
    recall100: float

    def as_dict(self) -> dict[str, Any]:
        metrics = {"ndcg@10": self.ndcg10, "map": self.average_precision, "recall@100": self.recall100}
        return {"queries": self.queries, **metrics}

    def __str__(self) -> str:
        metrics = (
            f"nDCG@10 {self.ndcg10:.4f}, MAP {self.average_precision:.4f}, recall@100 {self.recall100:.4f}"
        )
        return f"{metrics}, {self.queries} queries"


def retrieval_scores(rankings: Mapping[str, Sequence[str]], qrels: Qrels) -> RetrievalScores:
    """Score the ranking of every judged query; a missing ranking scores 0."""
    judged = {query: {d: v for d, v in documents.items() if v > 0} for query, documents in qrels.items()}
    judged = {query: relevant for query, relevant in judged.items() if relevant}
    if not judged:
        raise DataError("no query has a relevant document; check the relevance judgements")
    unknown = next((query for query in rankings if query not in qrels), None)
    if unknown is not None and not set(rankings) & set(judged):
        raise DataError(
            f"the query {unknown!r} is not in the relevance judgements; use the same query ids in both"
        )
    scores = [
        (ndcg(ranking, relevant), average_precision(ranking, relevant), recall(ranking, relevant))
        for query, relevant in judged.items()
        for ranking in [rankings.get(query, ())]
    ]
    return RetrievalScores(len(scores), *(float(x) for x in np.mean(scores, axis=0)))


def read_qrels(path: Path) -> Qrels:
    """Read TREC relevance judgements: lines of query, an unused number, document, relevance."""
    qrels: Qrels = {}
    number = 0
    for block in lines(path):
        for line in block:
            number += 1
            cells = line.split()
            if not cells:
                continue
            if len(cells) != 4 or not cells[3].lstrip("-").isdigit():
                raise DataError(
                    f"line {number} of {path} is not `query 0 document relevance`: {line[:60]!r}; fix it"
                )
            qrels.setdefault(cells[0], {})[cells[2]] = int(cells[3])
    return qrels


def pair_retrieval(a: NDArray[np.float32], b: NDArray[np.float32]) -> dict[str, float]:
    """Retrieve row i of one matrix by row i of the other: accuracy at rank 1 and mean reciprocal rank.

    Averaged over both directions. Vectors must have length 1; ties count against the correct row.
    """
    right, ranks = 0.0, 0.0
    for x, y in ((a, b), (b, a)):
        for start in range(0, len(x), 1024):
            cosines = x[start : start + 1024] @ y.T
            own = cosines[np.arange(len(cosines)), np.arange(start, start + len(cosines))][:, None]
            rank = (cosines >= own).sum(1)  # includes the correct row itself
            right += float((rank == 1).sum())
            ranks += float((1 / rank).sum())
    return {"accuracy": right / (2 * len(a)), "mrr": ranks / (2 * len(a))}
