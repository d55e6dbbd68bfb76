"""Sparse matrices with repeated rows: each distinct row is stored and multiplied once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RepeatedRows:
    """Row n is row `index[n]` of `table`; without an index the table is the matrix itself.

    With a user's history as features of each of their n_u ratings, the full matrix has Σ n_u² entries; this
    one has Σ n_u (Rendle 2013, "Scaling factorization machines to relational data").
    """

    table: Any  # a scipy CSR matrix
    index: NDArray[np.int64] | None = None

    @property
    def width(self) -> int:
        return self.table.shape[1]

    @cached_property
    def squared(self) -> Any:
        """The table with every entry squared."""
        return self.table.multiply(self.table).tocsr()

    @cached_property
    def transposed(self) -> tuple[Any, Any]:
        """CSR transposes of the table and its squares; products are twice as fast as with `table.T`."""
        return self.table.T.tocsr(), self.squared.T.tocsr()

    @cached_property
    def counts(self) -> Array:
        """How many rows each table row represents."""
        if self.index is None:
            return np.ones(self.table.shape[0])
        return np.bincount(self.index, minlength=self.table.shape[0]).astype(np.float64)

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Columns with an entry in some row; the others cannot be learned."""
        return self.transposed[1] @ self.counts > 0

    def expand(self, values: Array) -> Array:
        """(table rows,) → (rows,)."""
        return values if self.index is None else values[self.index]

    def gather(self, values: Array) -> Array:
        """(rows,) → (table rows,): sums over the rows that share a table row."""
        return values if self.index is None else sum_by_index(self.index, values, self.table.shape[0])


def sum_by_index(index: NDArray[np.int64], values: Array, size: int) -> Array:
    """Sum the values with the same index, (size,)."""
    return np.asarray(np.bincount(index, values, minlength=size), np.float64)


def hstack(*tables: Any) -> Any:
    """Concatenate sparse matrices horizontally."""
    return sparse.hstack(tables, "csr")
