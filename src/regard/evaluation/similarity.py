"""How well an embedder tells what is alike: beside people's scores by rank correlation, and by texts that find their partners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.data.datasets import Split
from regard.errors import DataError
from regard.evaluation.retrieval import pair_retrieval
from regard.pipelines.embed import embed

POSITIVE_SCORE = 4.0  # from this score on the two sentences of STS-B mean the same


@dataclass(frozen=True)
class SimilarityScores:
    """Correlations of cosines with people's scores, where there are any; and how texts find their partners among all."""

    pairs: int
    pair_retrieval: int  # pairs that mean the same
    accuracy: float
    mrr: float
    spearman: float | None = None
    pearson: float | None = None

    def as_dict(self) -> dict[str, Any]:
        found = {"pairs": self.pairs, "partners": self.partners, "accuracy": self.accuracy, "mrr": self.mrr}
        return (
            found if self.spearman is None else found | {"spearman": self.spearman, "pearson": self.pearson}
        )

    def __str__(self) -> str:
        lines = (
            []
            if self.spearman is None
            else [f"Spearman {self.spearman:.4f}, Pearson {self.pearson:.4f} of {self.pairs:,} pairs"]
        )
        return "\n".join(
            [
                *lines,
                f"partner found first {self.accuracy:.1%}, MRR {self.mrr:.4f} among {self.partners:,} pairs",
            ]
        )


def similarity_scores(model: Any, split: Split, progress: bool = False) -> SimilarityScores:
    """Embed both texts of each pair and compare."""
    if not split.sources:
        raise DataError(f"{split.name} holds no pairs of texts, so nothing can be compared; give some")
    both = embed(model, [*split.sources, *split.targets], progress=progress)
    a, b = both[: len(split.sources)], both[len(split.sources) :]
    if not split.scores:
        return SimilarityScores(len(a), len(a), **pair_retrieval(a, b))
    cosines, people = (a * b).sum(1), np.asarray(split.scores)
    same = people >= POSITIVE_SCORE
    found = pair_retrieval(a[same], b[same]) if same.any() else {"accuracy": 0.0, "mrr": 0.0}
    return SimilarityScores(
        len(a), int(same.sum()), **found, spearman=spearman(cosines, people), pearson=pearson(cosines, people)
    )


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """The correlation of the ranks; equal values share the mean of theirs."""
    return pearson(_ranks(x), _ranks(y))


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """The correlation of the values; 0 where one side does not vary."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size else 0.0


def _ranks(x: ArrayLike) -> NDArray[np.float64]:
    _, place, count = np.unique(np.asarray(x), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place]
