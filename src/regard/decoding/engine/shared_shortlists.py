"""Shortlists of several sentences that share one weight matrix.

The shortlist of a sentence depends on that sentence only, and so does everything computed from it. The
columns of a few sentences are put into one matrix because a product of several rows costs little more than
one of a single row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# Sentences per matrix. More of them load it less often, but a row computes more columns of others.
SIZE = 8


class SharedShortlists:
    """The shortlists of rows, as the struct `Shortlist` of engine.cpp.

    Each row of `rows` has the addresses of the matrix, of the bits that mark the row's columns in it and of
    the row's tokens, and the number of its tokens.
    """

    def __init__(self, rows: Any, referenced: dict[int, tuple[Any, ...]]) -> None:
        self.rows = rows
        self._referenced = referenced  # the objects at these addresses, by the address of the matrix

    @classmethod
    def of(cls, allowed: list[Any], choose: Callable[[Any], Any]) -> SharedShortlists:
        """Group neighbouring sentences.

        Args:
            allowed: the sorted tokens of each sentence.
            choose: makes the weight matrix of some tokens, an object with an `address`.
        """
        rows, referenced = np.zeros((len(allowed), 4), np.int64), {}
        for start in range(0, len(allowed), SIZE):
            group = allowed[start : start + SIZE]
            lengths = np.array([len(tokens) for tokens in group])
            flat = np.concatenate(group).astype(np.int32)
            in_any_shortlist = np.zeros(int(flat.max()) + 1, bool)
            in_any_shortlist[flat] = True
            chosen = choose(np.flatnonzero(in_any_shortlist).astype(np.int32))
            column = np.cumsum(in_any_shortlist) - 1
            bits = np.zeros((len(group), -(-int(column[-1] + 1) // 64) * 64), bool)
            bits[np.repeat(np.arange(len(group)), lengths), column[flat]] = True
            marks = np.packbits(bits, axis=1, bitorder="little")
            group_rows = rows[start : start + SIZE]
            group_rows[:, 0] = chosen.address
            group_rows[:, 1] = marks.ctypes.data + marks.strides[0] * np.arange(len(group))
            group_rows[:, 2] = flat.ctypes.data + flat.itemsize * (np.cumsum(lengths) - lengths)
            group_rows[:, 3] = lengths
            referenced[chosen.address] = chosen, marks, flat
        return cls(rows, referenced)

    def reorder(self, pick: Any) -> SharedShortlists:
        rows = self.rows[pick]
        return SharedShortlists(
            rows, {address: self._referenced[address] for address in np.unique(rows[:, 0]).tolist()}
        )

    def join(self, other: SharedShortlists) -> SharedShortlists:
        return SharedShortlists(np.concatenate([self.rows, other.rows]), self._referenced | other._referenced)
