"""BM25 ranking (Robertson et al. 1994, with Lucene's idf) over memory-mapped posting lists.

score(q, d) = Σ over words w of q: idf(w) · tf · (k1 + 1)/(tf + k1 · (1 − b + b · |d|/mean |d|)),
idf(w) = ln(1 + (N − n_w + ½)/(n_w + ½)); n_w of the N documents contain w, and w occurs tf times in d.
Words are identified by a 64-bit hash; among a million words a collision has a chance of one in forty million.
"""

# Why not bm25s (0.3.16, NumPy backend, without numba)? Same tokens, k1 and b, one thread each, on a shared
# two-core machine; medians of five (Cranfield) and three (Europarl) processes run in turn. Ours / bm25s:
#
#                     Cranfield, 1,398 documents     Europarl, 200,000 sentences
#   nDCG@10           0.3492 / 0.3492                –
#   build             0.22 / 0.26 s                  6.8 / 10.8 s
#   one query         0.62 / 0.40 ms                 11.9 / 4.8 ms
#   memory to build   7.7 / 8.8 MiB                  234 / 209 MiB
#   memory to search  5.4 / 6.5 MiB                  42 / 34 MiB
#
# bm25s answers queries 1.5 to 2.5 times as fast because it stores finished scores. These contain the idf and
# the mean length of the whole collection, so adding or removing a document means building the index again.
# Ours stores counts in memory-mapped segments: documents are added and removed without rewriting the others,
# with exact statistics. We need that, so we keep ours. (With its own tokeniser, stop words and k1, bm25s has
# nDCG@10 0.3522.)

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.errors import OptionError

WORD = re.compile(r"\w+")
ARRAYS = ("words", "starts", "documents", "counts", "lengths")


def tokenize(text: str) -> list[str]:
    """Lower-cased runs of letters and digits; no stop words and no stemming, for all languages alike."""
    return WORD.findall(text.lower())


@dataclass(frozen=True)
class Postings:
    """Inverted index: word i occurs in documents[starts[i] : starts[i + 1]]; `counts` has its frequencies."""

    words: NDArray[np.uint64]  # word hashes, ascending
    starts: NDArray[np.int64]
    documents: NDArray[np.int32]
    counts: NDArray[np.int32]
    lengths: NDArray[np.int32]  # number of words per document

    @classmethod
    def build(cls, texts: Iterable[str], advance: Callable[[int], None] = lambda n: None) -> Postings:
        """Count the words of all texts; `advance` is called with 1 after each."""
        word_ids: dict[str, int] = {}
        ids, documents, counts, lengths = [], [], [], []
        for i, text in enumerate(texts):
            frequencies = Counter(tokenize(text))
            ids += [word_ids.setdefault(word, len(word_ids)) for word in frequencies]
            documents += [i] * len(frequencies)
            counts += frequencies.values()
            lengths.append(sum(frequencies.values()))
            advance(1)
        hashes = np.array([_hash(word) for word in word_ids], np.uint64)
        by_hash = np.argsort(hashes)
        rank = np.empty(len(by_hash), np.int64)  # word id → position among the sorted hashes
        rank[by_hash] = np.arange(len(by_hash))
        ranks = rank[np.array(ids, np.int64)]
        order = np.argsort(ranks, kind="stable")
        starts = np.zeros(len(word_ids) + 1, np.int64)
        np.cumsum(np.bincount(ranks, minlength=len(word_ids)), out=starts[1:])
        int32 = lambda x: np.array(x, np.int32)  # noqa: E731
        return cls(hashes[by_hash], starts, int32(documents)[order], int32(counts)[order], int32(lengths))

    def save(self, folder: Path) -> None:
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> Postings:
        """Memory-map the arrays. `asarray` keeps the mapping and drops the slow memmap class."""
        return cls(*(np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ARRAYS))

    def check(self, documents: int) -> None:
        """Raise ValueError unless the arrays are consistent and belong to so many documents."""
        dtypes = (np.uint64, np.int64, np.int32, np.int32, np.int32)
        arrays = [getattr(self, name) for name in ARRAYS]
        if any(x.ndim != 1 or x.dtype != dtype for x, dtype in zip(arrays, dtypes, strict=True)):
            raise ValueError("its arrays do not have the dtypes of a BM25 index")
        if (
            len(self.lengths) != documents
            or len(self.starts) != len(self.words) + 1
            or len(self.documents) != len(self.counts)
        ):
            raise ValueError("its arrays have inconsistent lengths")
        if self.starts[0] != 0 or self.starts[-1] != len(self.documents) or (np.diff(self.starts) < 0).any():
            raise ValueError("the start offsets of its words do not ascend")
        if len(self.documents) and not 0 <= self.documents.min() <= self.documents.max() < documents:
            raise ValueError("it refers to documents that do not exist")

    def lookup(self, word: str) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """The documents that contain a word, and its frequency in each; both (n,)."""
        word_hash = np.uint64(_hash(word))
        i = int(np.searchsorted(self.words, word_hash))
        present = i < len(self.words) and self.words[i] == word_hash
        postings = slice(int(self.starts[i]), int(self.starts[i + 1])) if present else slice(0, 0)
        return self.documents[postings].astype(np.intp), self.counts[postings]


class Bm25:
    """BM25 scores over consecutive segments. Removed documents score 0 and are not counted."""

    def __init__(
        self,
        segments: Sequence[Postings],
        removed: NDArray[np.int64] | None = None,
        *,
        k1: float = 1.2,
        b: float = 0.75,
    ) -> None:
        if not k1 >= 0 or not 0 <= b <= 1:
            raise OptionError(f"BM25 takes k1 of at least 0 and b between 0 and 1, got k1 {k1!r} and b {b!r}")
        self.segments, self.k1 = list(segments), k1
        ends = np.cumsum([len(segment.lengths) for segment in segments], dtype=np.int64)
        live = np.ones(ends[-1] if segments else 0, bool)
        if removed is not None:
            live[removed] = False
        self._live = np.split(live, ends)[:-1]
        self.size = int(live.sum())
        self._any_removed = self.size < len(live)
        words = sum(
            int(segment.lengths[live].sum(dtype=np.int64))
            for segment, live in zip(segments, self._live, strict=True)
        )
        mean_length = words / max(1, self.size)
        # k1 · (1 − b + b · |d|/mean |d|) of every document
        self._norms = [k1 * (1 - b + b * segment.lengths / max(mean_length, 1e-9)) for segment in segments]

    def scores(self, query: str) -> NDArray[np.float64]:
        """Score every document, (documents,); 0 for a document without any word of the query."""
        scores = [np.zeros(len(segment.lengths)) for segment in self.segments]
        for word, times in Counter(tokenize(query)).items():
            postings = [segment.lookup(word) for segment in self.segments]
            df = self._document_frequency(postings)
            weight = times * np.log1p((self.size - df + 0.5) / (df + 0.5)) * (self.k1 + 1)
            for score, norms, (documents, tf) in zip(scores, self._norms, postings, strict=True):
                gain = weight * tf  # in place: large temporaries cost more than the arithmetic
                gain /= norms[documents] + tf
                score[documents] += gain
        if self._any_removed:
            for score, live in zip(scores, self._live, strict=True):
                score[~live] = 0.0
        return np.concatenate([np.zeros(0), *scores])

    def _document_frequency(self, postings: list[tuple[NDArray[np.intp], NDArray[np.int32]]]) -> int:
        if not self._any_removed:
            return sum(len(documents) for documents, _ in postings)
        return sum(
            int(np.count_nonzero(live[documents]))
            for live, (documents, _) in zip(self._live, postings, strict=True)
        )


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")
