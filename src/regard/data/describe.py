"""What a set of rows looks like: how many, how long, what is wrong with them, and a few of them to read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.prepare import Report, usable
from regard.data.readers import Rows
from regard.files.progress import track

MOST = 200_000  # rows that are looked at; a corpus of millions is described by its first


@dataclass(frozen=True)
class Lengths:
    """Lengths of the texts of one column, in one unit."""

    mean: float
    median: int
    high: int  # 95 of 100 are not longer
    longest: int

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> Lengths:
        if not len(lengths):
            return cls(0.0, 0, 0, 0)
        median, high = np.percentile(lengths, [50, 95], method="inverted_cdf")
        return cls(float(lengths.mean()), int(median), int(high), int(lengths.max()))


@dataclass(frozen=True)
class Description:
    """Rows as they were found. `whole` says whether all of them were looked at."""

    report: Report
    whole: bool
    words: list[Lengths]  # for each column; words are what stands between spaces
    characters: list[Lengths]
    samples: list[tuple[str, ...]]


def describe(rows: Rows, samples: int = 5, what: str = "rows") -> Description:
    """Look at the first rows of a reader: count, measure, and take evenly spaced ones as samples."""
    rows.check()
    report, columns = Report(), 1 + rows.paired
    words: list[list[int]] = [[] for _ in range(columns)]
    characters: list[list[int]] = [[] for _ in range(columns)]
    kept: list[tuple[str, ...]] = []
    step, seen = 1, 0
    with track(sum(path.stat().st_size for path in rows.files), f"reading {what}", "bytes") as progress:
        for block, _ in usable(rows, MOST, report, progress.advance):
            for i, column in enumerate(block):
                words[i] += [len(text.split()) for text in column]
                characters[i] += map(len, column)
            for row in zip(*block, strict=True):
                if seen % step == 0 and any(text.strip() for text in row):
                    kept.append(row)
                    if len(kept) > 8 * max(
                        1, samples
                    ):  # thinned out as they become too many, so that all of the set is shown
                        kept, step = kept[::2], 2 * step
                seen += 1
    report.kept = seen
    spaced = [kept[i * len(kept) // samples] for i in range(min(samples, len(kept)))] if samples else []
    return Description(
        report, report.read < MOST,
        [Lengths.of(np.asarray(column, np.int64)) for column in words],
        [Lengths.of(np.asarray(column, np.int64)) for column in characters],
        spaced,
    )  # fmt: skip
