"""Nearest neighbours without looking at all: a graph of vectors (HNSW, Malkov & Yashunin 2018) by usearch.

The graph holds vectors rounded to 8 bits, a quarter of the memory to walk through. What it finds is only a shortlist: the caller
compares it with the vectors themselves.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import FolderError, OptionError
from regard.files.progress import track

NEIGHBOURS, CAREFUL, SHORTLIST = 16, 128, 256  # of a vector; looked at to place one; looked at to find one
PART = 4096  # vectors placed between two looks at Ctrl-C


class Graph:
    """Numbers of vectors by nearness. It is searched by `threads`, 0 is all cores, and built by one: with several, usearch now and
    then connects a vector to no other, and it is never found again.
    """

    def __init__(self, width: int, *, threads: int = 0) -> None:
        self.width, self.threads = width, threads
        self.inner: Any = usearch().Index(
            ndim=width,
            metric="ip",
            dtype="i8",
            connectivity=NEIGHBOURS,
            expansion_add=CAREFUL,
            expansion_search=SHORTLIST,
        )

    @classmethod
    def load(cls, path: Path, width: int, *, change: bool = False, threads: int = 0) -> Graph:
        """Read from the disk as needed, or all into memory where it is to be changed."""
        found = cls(width, threads=threads)
        try:
            (found.inner.load if change else found.inner.view)(str(path))
        except Exception as error:  # usearch raises what its C++ raises
            raise FolderError(f"{path} cannot be read ({error}); build the index again") from None
        return found

    def add(self, numbers: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        with track(len(numbers), "building the graph", "vectors") as bar:
            for i in range(0, len(numbers), PART):
                self.inner.add(numbers[i : i + PART], _rounded(vectors[i : i + PART]), copy=True, threads=1)
                bar.advance(len(numbers[i : i + PART]))

    def remove(self, numbers: NDArray[np.int64]) -> None:
        self.inner.remove(numbers)

    def near(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Numbers of about the nearest vectors, (queries, count); −1 where there are no more."""
        self.inner.expansion_search = max(SHORTLIST, count)
        found = self.inner.search(_rounded(queries), count, threads=self.threads)
        if not hasattr(found, "counts"):  # usearch answers a single query without the axis of queries
            keys = np.full((1, count), -1, np.int64)
            keys[0, : len(found.keys)] = found.keys
            return keys
        keys = found.keys.astype(np.int64)
        keys[np.arange(keys.shape[1]) >= found.counts[:, None]] = -1
        return keys

    def save(self, path: Path) -> None:
        self.inner.save(str(path))

    def __len__(self) -> int:
        return len(self.inner)


def _rounded(x: NDArray[np.float32]) -> NDArray[np.int8]:
    """Vectors of length 1 to 8 bits. Components are about 1/√width; the few beyond 6.5 times that are cut to it."""
    most = min(1.0, 6.5 / math.sqrt(x.shape[-1]))
    return np.clip(np.rint(x * (127 / most)), -127, 127).astype(np.int8)


def usearch() -> Any:
    try:
        import usearch.index
    except ImportError:
        raise OptionError('this needs usearch; pip install "regard[search]"') from None
    return usearch.index
