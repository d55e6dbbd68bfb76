"""Shortlists of several sentences that share one weight matrix.

One matrix has the output columns of a few sentences, because a product of several rows costs little more than
one of a single row. Each row then uses only the columns of its own shortlist, so a translation does not
depend on the sentences that share its matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# Sentences per matrix. With more, the matrix is read less often, but a row computes more columns that only
# other sentences need.
SIZE = 8


class SharedShortlists:
    """The shortlists of rows, as the struct `Shortlist` of engine.cpp.

    A row of `rows` has four integers: the addresses of the matrix, of the bits that mark the row's columns in
    it and of the row's tokens, and the number of these tokens.
    """

    def __init__(self, rows: Any, referenced: dict[int, tuple[Any, ...]]) -> None:
        self.rows = rows
        self._referenced = referenced  # the objects at these addresses, by the address of the matrix

    @classmethod
    def of(cls, allowed: list[Any], make_matrix: Callable[[Any], Any]) -> SharedShortlists:
        """Group neighbouring sentences.

        Args:
            allowed: the sorted tokens of each sentence.
            make_matrix: returns the output columns of some tokens, an object with an `address`.
        """
        rows, referenced = np.zeros((len(allowed), 4), np.int64), {}
        for start in range(0, len(allowed), SIZE):
            group = allowed[start : start + SIZE]
            lengths = np.array([len(tokens) for tokens in group])
            flat = np.concatenate(group).astype(np.int32)
            in_any_shortlist = np.zeros(int(flat.max()) + 1, bool)
            in_any_shortlist[flat] = True
            matrix = make_matrix(np.flatnonzero(in_any_shortlist).astype(np.int32))
            column = np.cumsum(in_any_shortlist) - 1
            bits = np.zeros((len(group), -(-int(column[-1] + 1) // 64) * 64), bool)
            bits[np.repeat(np.arange(len(group)), lengths), column[flat]] = True
            marks = np.packbits(bits, axis=1, bitorder="little")
            group_rows = rows[start : start + SIZE]
            group_rows[:, 0] = matrix.address
            group_rows[:, 1] = marks.ctypes.data + marks.strides[0] * np.arange(len(group))
            group_rows[:, 2] = flat.ctypes.data + flat.itemsize * (np.cumsum(lengths) - lengths)
            group_rows[:, 3] = lengths
            referenced[matrix.address] = matrix, marks, flat
        return cls(rows, referenced)

    def reorder(self, pick: Any) -> SharedShortlists:
        rows = self.rows[pick]
        return SharedShortlists(
            rows, {address: self._referenced[address] for address in np.unique(rows[:, 0]).tolist()}
        )

    def join(self, other: SharedShortlists) -> SharedShortlists:
        return SharedShortlists(np.concatenate([self.rows, other.rows]), self._referenced | other._referenced)
