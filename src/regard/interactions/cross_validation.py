"""How well a kind predicts ratings it has not seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, OptionError
from regard.interactions.ratings import Ratings
from regard.interactions.recommenders import RECOMMENDERS, RecommenderSettings

RowIndices = NDArray[np.int64]


@dataclass(frozen=True)
class FoldScore:
    """One fit and its errors on ratings that were held out."""

    rmse: float
    mae: float
    seconds: float


def splits(
    count: int, folds: int | None = None, share: float = 0.2, seed: int = 0
) -> list[tuple[RowIndices, RowIndices]]:
    """Pairs of rows to learn from and to ask for: k folds, or one drawn share."""
    order = np.random.default_rng(seed).permutation(count)
    if folds is not None:
        if not 2 <= folds <= count:
            raise OptionError(f"{count} ratings cannot be cut into {folds} folds; choose 2 to {count}")
        parts = np.array_split(order, folds)
        return [(np.concatenate([*parts[:k], *parts[k + 1 :]]), parts[k]) for k in range(folds)]
    held = round(count * share)
    if not 0 < held < count:
        raise DataError(
            f"a share of {share:g} of {count} ratings leaves nothing to learn from or to ask for; choose another"
        )
    return [(order[held:], order[:held])]


def evaluate_split(ratings: Ratings, kind: str, settings: RecommenderSettings, train: RowIndices, test: RowIndices) -> FoldScore:
    """Fit on some rows and ask for the others."""
    begin = time.perf_counter()
    fitted = RECOMMENDERS[kind](ratings.part(train), settings)
    seconds = time.perf_counter() - begin
    error = fitted.predict(ratings.user[test], ratings.item[test]) - ratings.rating[test]
    return FoldScore(float(np.sqrt(np.mean(error**2))), float(np.mean(np.abs(error))), seconds)


def cross_validate(
    ratings: Ratings,
    kind: str,
    settings: RecommenderSettings,
    parts: list[tuple[RowIndices, RowIndices]],
    each: Callable[[int], None] = lambda n: None,
) -> list[FoldScore]:
    """One trial per split."""
    found = []
    for train, test in parts:
        found.append(evaluate_split(ratings, kind, settings, train, test))
        each(1)
    return found
