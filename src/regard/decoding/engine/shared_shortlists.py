"""Sentences that share the weights of the words that any of them may write.

A sentence's shortlist depends on that sentence alone, and so does everything computed from it: the weights of
a few sentences' words are put together because a product of several rows costs little more than one of a
single row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

SIZE = 8  # sentences: more of them share a load of the weights, and compute more words that are another's


class SharedShortlists:
    """For each row a line of numbers as `engine.cpp` takes it (Listed): addresses of the weights, of the bits
    that mark the row's own words among them, of these words, and how many they are.
    """

    def __init__(self, rows: Any, kept: dict[int, tuple[Any, ...]]) -> None:
        self.rows, self._kept = rows, kept  # what the addresses are of, by the address of the weights

    @classmethod
    def of(cls, allowed: list[Any], choose: Callable[[Any], Any]) -> SharedShortlists:
        """Sentences next to each other form a family. `allowed`: each one's words in rising order."""
        rows, kept = np.zeros((len(allowed), 4), np.int64), {}
        for start in range(0, len(allowed), SIZE):
            family = allowed[start : start + SIZE]
            lengths = np.array([len(words) for words in family])
            flat = np.concatenate(family).astype(np.int32)
            every = np.zeros(int(flat.max()) + 1, bool)
            every[flat] = True
            chosen = choose(np.flatnonzero(every).astype(np.int32))
            place = np.cumsum(every) - 1
            bits = np.zeros((len(family), -(-int(place[-1] + 1) // 64) * 64), bool)
            bits[np.repeat(np.arange(len(family)), lengths), place[flat]] = True
            marks = np.packbits(bits, axis=1, bitorder="little")
            mine = rows[start : start + SIZE]
            mine[:, 0] = chosen.address
            mine[:, 1] = marks.ctypes.data + marks.strides[0] * np.arange(len(family))
            mine[:, 2] = flat.ctypes.data + flat.itemsize * (np.cumsum(lengths) - lengths)
            mine[:, 3] = lengths
            kept[chosen.address] = chosen, marks, flat
        return cls(rows, kept)

    def reorder(self, pick: Any) -> SharedShortlists:
        rows = self.rows[pick]
        return SharedShortlists(
            rows, {address: self._kept[address] for address in np.unique(rows[:, 0]).tolist()}
        )

    def join(self, other: SharedShortlists) -> SharedShortlists:
        return SharedShortlists(np.concatenate([self.rows, other.rows]), self._kept | other._kept)
