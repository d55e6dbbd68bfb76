"""Embedding metrics: correlation with human similarity scores, and retrieval of paired texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.data.datasets import Split
from regard.errors import DataError
from regard.evaluation.retrieval import pair_retrieval
from regard.pipelines.embed import embed

POSITIVE_SCORE = 4.0  # STS-B pairs from this score on count as paraphrases


@dataclass(frozen=True)
class SimilarityScores:
    """Retrieval of paired texts, and correlations of cosines with human scores if there are any."""

    pairs: int
    positive_pairs: int  # paraphrases, used for retrieval
    accuracy: float
    mrr: float
    spearman: float | None = None
    pearson: float | None = None

    def as_dict(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {
            "pairs": self.pairs,
            "positive_pairs": self.positive_pairs,
            "accuracy": self.accuracy,
            "mrr": self.mrr,
        }
        if self.spearman is not None:
            metrics |= {"spearman": self.spearman, "pearson": self.pearson}
        return metrics

    def __str__(self) -> str:
        lines = []
        if self.spearman is not None:
            lines = [f"Spearman {self.spearman:.4f}, Pearson {self.pearson:.4f} of {self.pairs:,} pairs"]
        retrieval = f"retrieval accuracy {self.accuracy:.1%}, MRR {self.mrr:.4f}"
        return "\n".join([*lines, f"{retrieval} among {self.positive_pairs:,} pairs"])


def similarity_scores(model: Any, split: Split, progress: bool = False) -> SimilarityScores:
    """Embed both texts of each pair and compute all metrics."""
    if not split.sources:
        raise DataError(f"{split.name} contains no pairs of texts; give data with pairs")
    both = embed([*split.sources, *split.targets], model, progress=progress)
    a, b = both[: len(split.sources)], both[len(split.sources) :]
    if not split.scores:
        return SimilarityScores(len(a), len(a), **pair_retrieval(a, b))
    cosines, human = (a * b).sum(1), np.asarray(split.scores)
    positive = human >= POSITIVE_SCORE
    retrieval = pair_retrieval(a[positive], b[positive]) if positive.any() else {"accuracy": 0.0, "mrr": 0.0}
    return SimilarityScores(
        len(a),
        int(positive.sum()),
        **retrieval,
        spearman=spearman(cosines, human),
        pearson=pearson(cosines, human),
    )


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman rank correlation; ties share their mean rank."""
    return pearson(_ranks(x), _ranks(y))


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson correlation; 0 if one side is constant."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / norm if norm else 0.0


def _ranks(x: ArrayLike) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of their ranks."""
    _, value_index, count = np.unique(np.asarray(x), return_inverse=True, return_counts=True)
    last_rank = np.cumsum(count)  # of each distinct value
    return (last_rank - (count - 1) / 2)[value_index]
