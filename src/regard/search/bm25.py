"""Search by words: BM25 (Robertson et al. 1994, with the idf of Lucene), on arrays that are read from the disk as needed.

score(q, d) = Σ over words w of q: idf(w) · tf · (k1 + 1)/(tf + k1 · (1 − b + b · |d|/mean |d|)),
idf(w) = ln(1 + (N − n_w + ½)/(n_w + ½)), where n_w of N documents hold w, tf times in d.
A word is known by 64 bits of its hash; that two of a million share one has a chance of one in forty million.
"""

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
PARTS = ("words", "starts", "documents", "counts", "lengths")


def words_of(text: str) -> list[str]:
    """Letters and digits in a row, in lower case: no list of stop words and no stems, so that any language is served alike."""
    return WORD.findall(text.lower())


@dataclass(frozen=True)
class Postings:
    """Which documents hold each word, and how often: the word words[i] is in documents[starts[i] : starts[i + 1]]."""

    words: NDArray[np.uint64]  # hashes in rising order
    starts: NDArray[np.int64]
    documents: NDArray[np.int32]
    counts: NDArray[np.int32]
    lengths: NDArray[np.int32]  # words in each document

    @classmethod
    def of(cls, texts: Iterable[str], advance: Callable[[int], None] = lambda n: None) -> Postings:
        known: dict[str, int] = {}
        numbers, documents, counts, lengths = [], [], [], []
        for i, text in enumerate(texts):
            found = Counter(words_of(text))
            numbers += [known.setdefault(word, len(known)) for word in found]
            documents += [i] * len(found)
            counts += found.values()
            lengths.append(sum(found.values()))
            advance(1)
        hashes = np.array([_hash(word) for word in known], np.uint64)
        place = np.argsort(hashes)
        rank = np.empty(len(place), np.int64)
        rank[place] = np.arange(len(place))
        order = np.argsort(rank[np.array(numbers, np.int64)], kind="stable")
        starts = np.zeros(len(known) + 1, np.int64)
        np.cumsum(np.bincount(rank[np.array(numbers, np.int64)], minlength=len(known)), out=starts[1:])
        small = lambda x: np.array(x, np.int32)  # noqa: E731
        return cls(hashes[place], starts, small(documents)[order], small(counts)[order], small(lengths))

    def save(self, folder: Path) -> None:
        for name in PARTS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> Postings:
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in PARTS))

    def check(self, documents: int) -> None:
        """Raise a ValueError unless the arrays fit together and to a part of so many documents."""
        kinds = (np.uint64, np.int64, np.int32, np.int32, np.int32)
        arrays = [getattr(self, name) for name in PARTS]
        if any(x.ndim != 1 or x.dtype != kind for x, kind in zip(arrays, kinds, strict=True)):
            raise ValueError("its arrays are not of the types of a BM25 index")
        if (
            len(self.lengths) != documents
            or len(self.starts) != len(self.words) + 1
            or len(self.documents) != len(self.counts)
        ):
            raise ValueError("its arrays do not fit together")
        if self.starts[0] != 0 or self.starts[-1] != len(self.documents) or (np.diff(self.starts) < 0).any():
            raise ValueError("its words are not in order")
        if len(self.documents) and not 0 <= self.documents.min() <= self.documents.max() < documents:
            raise ValueError("it names documents that are not there")

    def find(self, word: str) -> slice:
        """Where the documents of a word are."""
        wanted = np.uint64(_hash(word))
        i = int(np.searchsorted(self.words, wanted))
        return (
            slice(int(self.starts[i]), int(self.starts[i + 1]))
            if i < len(self.words) and self.words[i] == wanted
            else slice(0, 0)
        )


class Bm25:
    """Scores of all documents of several parts, numbered through. Those that were removed score 0 and count nowhere."""

    def __init__(
        self,
        parts: Sequence[Postings],
        removed: NDArray[np.int64] | None = None,
        *,
        k1: float = 1.2,
        b: float = 0.75,
    ) -> None:
        if not k1 >= 0 or not 0 <= b <= 1:
            raise OptionError(f"BM25 takes k1 of at least 0 and b between 0 and 1, got k1 {k1!r} and b {b!r}")
        self.parts, self.k1 = list(parts), k1
        ends = np.cumsum([len(part.lengths) for part in parts], dtype=np.int64)
        live = np.ones(ends[-1] if parts else 0, bool)
        if removed is not None:
            live[removed] = False
        self._live = np.split(live, ends)[:-1]
        self.size = int(live.sum())
        words = sum(
            int(part.lengths[here].sum(dtype=np.int64)) for part, here in zip(parts, self._live, strict=True)
        )
        mean = words / max(1, self.size)
        self._lengths = [
            k1 * (1 - b + b * part.lengths / max(mean, 1e-9)) for part in parts
        ]  # what tf is compared with

    def scores(self, query: str) -> NDArray[np.float64]:
        """Of every document; 0 for one that holds none of the words."""
        found = [np.zeros(len(part.lengths)) for part in self.parts]
        for word, times in Counter(words_of(query)).items():
            places = [part.find(word) for part in self.parts]
            kept = [
                here[part.documents[place]]
                for part, place, here in zip(self.parts, places, self._live, strict=True)
            ]
            holding = sum(int(here.sum()) for here in kept)
            weight = times * np.log1p((self.size - holding + 0.5) / (holding + 0.5)) * (self.k1 + 1)
            for score, part, place, here, lengths in zip(
                found, self.parts, places, kept, self._lengths, strict=True
            ):
                documents, tf = part.documents[place][here], part.counts[place][here]
                score[documents] += weight * tf / (tf + lengths[documents])
        return np.concatenate([np.zeros(0), *found])


def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")
