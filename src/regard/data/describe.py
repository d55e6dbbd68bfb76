"""Describe a dataset: number of rows, lengths, problems, and some samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.prepare import Report, usable
from regard.data.readers import Rows
from regard.files.progress import track

MAX_ROWS = 200_000  # larger datasets are described by their first rows


@dataclass(frozen=True)
class Lengths:
    """Lengths of the texts of one column, in one unit."""

    mean: float
    median: int
    high: int  # 95th percentile
    longest: int

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> Lengths:
        if not len(lengths):
            return cls(0.0, 0, 0, 0)
        median, high = np.percentile(lengths, [50, 95], method="inverted_cdf")
        return cls(float(lengths.mean()), int(median), int(high), int(lengths.max()))


@dataclass(frozen=True)
class Description:
    """The description of a dataset. `complete` is False if only its first rows were read."""

    report: Report
    complete: bool
    words: list[Lengths]  # for each column; words are separated by spaces
    characters: list[Lengths]
    samples: list[tuple[str, ...]]


def describe(rows: Rows, samples: int = 5, name: str = "rows") -> Description:
    """Describe the first rows of a reader: counts, lengths, and evenly spaced samples."""
    rows.check()
    report, columns = Report(), 1 + rows.paired
    words: list[list[int]] = [[] for _ in range(columns)]
    characters: list[list[int]] = [[] for _ in range(columns)]
    sampled: list[tuple[str, ...]] = []
    step, count = 1, 0
    with track(sum(path.stat().st_size for path in rows.files), f"reading {name}", "bytes") as progress:
        for block, _ in usable(rows, MAX_ROWS, report, progress.advance):
            for i, column in enumerate(block):
                words[i] += [len(text.split()) for text in column]
                characters[i] += map(len, column)
            for row in zip(*block, strict=True):
                if count % step == 0 and any(text.strip() for text in row):
                    sampled.append(row)
                    if len(sampled) > 8 * max(1, samples):  # thin out, so that samples come from everywhere
                        sampled, step = sampled[::2], 2 * step
                count += 1
    report.kept = count
    spaced = (
        [sampled[i * len(sampled) // samples] for i in range(min(samples, len(sampled)))] if samples else []
    )
    return Description(
        report,
        report.read < MAX_ROWS,
        [Lengths.of(np.asarray(column, np.int64)) for column in words],
        [Lengths.of(np.asarray(column, np.int64)) for column in characters],
        spaced,
    )
