"""Cross-validation of recommenders: errors on held-out ratings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, OptionError
from regard.interactions.fit_recommender import RECOMMENDERS, RecommenderSettings
from regard.interactions.ratings import Ratings

RowIndices = NDArray[np.int64]


@dataclass(frozen=True)
class FoldScore:
    """Errors on the held-out ratings of one split, and the seconds to fit."""

    rmse: float
    mae: float
    seconds: float


def splits(
    count: int, folds: int | None = None, share: float = 0.2, seed: int = 0
) -> list[tuple[RowIndices, RowIndices]]:
    """(train, test) row indices: k folds, or one random split with `share` of the rows as test set."""
    order = np.random.default_rng(seed).permutation(count)
    if folds is not None:
        if not 2 <= folds <= count:
            raise OptionError(f"{count} ratings cannot be split into {folds} folds; choose 2 to {count}")
        chunks = np.array_split(order, folds)
        return [(np.concatenate([*chunks[:k], *chunks[k + 1 :]]), chunks[k]) for k in range(folds)]
    held_out = round(count * share)
    if not 0 < held_out < count:
        raise DataError(
            f"a share of {share:g} of {count} ratings leaves an empty training or test set; choose another "
            f"share"
        )
    return [(order[held_out:], order[:held_out])]


def evaluate_split(
    ratings: Ratings, kind: str, settings: RecommenderSettings, train: RowIndices, test: RowIndices
) -> FoldScore:
    """Fit on the training rows and evaluate on the test rows."""
    start = time.perf_counter()
    fitted = RECOMMENDERS[kind](ratings.subset(train), settings)
    seconds = time.perf_counter() - start
    error = fitted.predict(ratings.user[test], ratings.item[test]) - ratings.rating[test]
    return FoldScore(float(np.sqrt(np.mean(error**2))), float(np.mean(np.abs(error))), seconds)


def cross_validate(
    ratings: Ratings,
    kind: str,
    settings: RecommenderSettings,
    parts: list[tuple[RowIndices, RowIndices]],
    advance: Callable[[int], None] = lambda n: None,
) -> list[FoldScore]:
    """Evaluate every split; `advance` is called with 1 after each."""
    scores = []
    for train, test in parts:
        scores.append(evaluate_split(ratings, kind, settings, train, test))
        advance(1)
    return scores
