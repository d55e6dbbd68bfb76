"""Sentences, and runs in turn, for the benchmarks of embedding beside sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from regard.data.corpora import data_folder
from regard.data.text_files import lines


def sentences(count: int, shortest: int = 20, longest: int = 200) -> list[str]:
    """The first distinct lines of Europarl's English side with `shortest` to `longest` characters."""
    texts: dict[str, None] = {}
    for block in lines(data_folder() / "europarl-en-de" / "train.en.xz"):
        fitting = (text for text in map(str.strip, block) if shortest <= len(text) <= longest)
        texts |= dict.fromkeys(fitting)
        if len(texts) >= count:
            break
    return list(texts)[:count]


def captions(count: int) -> list[str]:
    """The first lines of the training set of Multi30k, in English."""
    return [line for block in lines(data_folder() / "multi30k" / "train.en.gz") for line in block][:count]


def in_turn(
    runs: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of each run, all of them once per round so that noise affects them alike, and last results."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    results: dict[str, Any] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            results[name] = run()
            seconds[name].append(clock() - start)
    return seconds, results


def difference(vectors: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """The largest difference of a component and the lowest cosine of two vectors of a text."""
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (vectors, others))
    return float(np.abs(vectors - others).max()), float((a * b).sum(1).min())
