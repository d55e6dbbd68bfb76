"""Approximate nearest-neighbour search: an HNSW graph (Malkov & Yashunin 2018) by usearch.

The graph stores vectors quantized to int8, a quarter of the memory. Its results are candidates, which the
caller re-ranks with the original vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import FolderError, OptionError
from regard.files.progress import track

CONNECTIVITY, EXPANSION_ADD, EXPANSION_SEARCH = 16, 128, 256  # M, efConstruction, ef
CHUNK = 4096  # vectors added per call, so that Ctrl-C is handled in between


class HnswGraph:
    """HNSW graph over numbered vectors. Searches use `threads` (0: all cores).

    Building uses one thread: with several, usearch sometimes leaves a vector unconnected, so it
    is never found.
    """

    def __init__(self, width: int, *, threads: int = 0) -> None:
        self.width, self.threads = width, threads
        self.inner: Any = import_usearch().Index(
            ndim=width,
            metric="ip",
            dtype="i8",
            connectivity=CONNECTIVITY,
            expansion_add=EXPANSION_ADD,
            expansion_search=EXPANSION_SEARCH,
        )

    @classmethod
    def load(cls, path: Path, width: int, *, change: bool = False, threads: int = 0) -> HnswGraph:
        """Memory-map a saved graph, or read it into memory with `change=True`."""
        graph = cls(width, threads=threads)
        try:
            with _interruptible():
                (graph.inner.load if change else graph.inner.view)(str(path))
        except Exception as error:  # usearch passes on any C++ exception
            raise FolderError(f"{path} cannot be read ({error}); build the index again") from None
        return graph

    def add(self, numbers: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        with track(len(numbers), "building the graph", "vectors") as bar:
            for i in range(0, len(numbers), CHUNK):
                chunk = _quantize(vectors[i : i + CHUNK])
                with _interruptible():
                    self.inner.add(numbers[i : i + CHUNK], chunk, copy=True, threads=1)
                bar.advance(len(chunk))

    def remove(self, numbers: NDArray[np.int64]) -> None:
        with _interruptible():
            self.inner.remove(numbers)

    def search(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Numbers of the approximate nearest vectors, (queries, count); −1 for missing results."""
        self.inner.expansion_search = max(EXPANSION_SEARCH, count)
        with _interruptible():
            matches = self.inner.search(_quantize(queries), count, threads=self.threads)
        if not hasattr(matches, "counts"):  # for one query usearch omits the query axis
            keys = np.full((1, count), -1, np.int64)
            keys[0, : len(matches.keys)] = matches.keys
            return keys
        keys = matches.keys.astype(np.int64)
        keys[np.arange(keys.shape[1]) >= matches.counts[:, None]] = -1
        return keys

    def save(self, path: Path) -> None:
        with _interruptible():
            self.inner.save(str(path))

    def __len__(self) -> int:
        return len(self.inner)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the RuntimeError that usearch raises on Ctrl-C into KeyboardInterrupt."""
    try:
        yield
    except RuntimeError as error:
        if "terminated" in str(error):
            raise KeyboardInterrupt from None
        raise


def _quantize(x: NDArray[np.float32]) -> NDArray[np.int8]:
    """Quantize unit vectors to int8. Components are about 1/√width; above 6.5 times that they are clipped."""
    limit = min(1.0, 6.5 / math.sqrt(x.shape[-1]))
    return np.clip(np.rint(x * (127 / limit)), -127, 127).astype(np.int8)


def import_usearch() -> Any:
    try:
        import usearch.index
    except ImportError:
        raise OptionError('this needs usearch; pip install "regard[search]"') from None
    return usearch.index
