"""Splits of a dataset without official ones: cross-validation folds, a held-out share, a range of rows.

Membership in a split is decided row by row, so memory does not grow with the number of rows.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.readers import Advance, Block, Rows, ignore

EXACT = 1 << 16  # up to this many rows of a class its share is exact; beyond, it is approximate
END = 1 << 64  # above every hash


class _FilteredRows(Rows):
    """Base class of readers that keep some rows of another reader."""

    rows: Rows

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows.paired

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows.files

    @abstractmethod
    def keeps(self, number: int, row: tuple[str, ...]) -> bool:
        """True if row `number`, counted from 0, is in the split."""

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        numbers = count()
        for block in self.rows.blocks(advance):
            inside = [i for i, row in enumerate(zip(*block, strict=True)) if self.keeps(next(numbers), row)]
            yield tuple([column[i] for i in inside] for column in block)

    def place(self, row: int, column: int) -> str:
        numbers = (number for number, content in enumerate(self.rows) if self.keeps(number, content))
        return self.rows.place(next(number for index, number in enumerate(numbers) if index == row), column)

    def notes(self) -> list[str]:
        return self.rows.notes()


@dataclass(frozen=True)
class HashSplitRows(_FilteredRows):
    """The rows of a corpus without official splits that belong to one split, by a hash of one column.

    All rows with the same text in that column are in the same split, so no sentence is in both training and
    test. About 2 % of the texts are validation and 2 % are test.
    """

    rows: Rows
    column: int
    split: str

    def layout(self) -> dict[str, Any]:
        return {**self.rows.layout(), "drawn": self.split, "by": self.column}

    def keeps(self, number: int, row: tuple[str, ...]) -> bool:
        return hash_split(row[self.column]) == self.split


def hash_split(text: str) -> str:
    """The split of a text, by its hash: train, validation or test."""
    return {0: "validation", 1: "test"}.get(_hash(text) % 50, "train")


@dataclass(frozen=True)
class SplitRows(_FilteredRows):
    """The rows inside (or outside) a share `start` … `stop` of each class, ordered by a hash of their texts.

    The split is stratified, is the same on every machine and for every seed, and never separates equal texts
    of a class. Without `classes` all rows are one class. A first pass stores 8 bytes for each of the first
    EXACT rows of a class; with them the share is exact up to equal texts. A larger class is split at the hash
    share · 2⁶⁴, which is off by about √rows.
    """

    is_part = True

    rows: Rows
    start: float
    stop: float
    inside: bool = True
    classes: bool = True  # the last column is a class
    key: Callable[[str], str] = str  # what is hashed of a text

    def layout(self) -> dict[str, Any]:
        shares = {
            "cut": [self.start, self.stop],
            "inside": self.inside,
            "classes": self.classes,
            "by": "hash",
        }
        return {"of": self.rows.layout(), **shares}

    @cached_property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """For each class, the smallest hash inside the share and the smallest beyond it."""
        hashes: dict[str, array[int]] = {}
        for row in self.rows:
            class_hashes = hashes.setdefault(self._class(row), array("Q"))
            if len(class_hashes) <= EXACT:
                class_hashes.append(_hash(self.key(row[0])))
        return {
            name: (_bound(class_hashes, self.start), _bound(class_hashes, self.stop))
            for name, class_hashes in hashes.items()
        }

    def keeps(self, number: int, row: tuple[str, ...]) -> bool:
        low, high = self.bounds[self._class(row)]
        return (low <= _hash(self.key(row[0])) < high) == self.inside

    def _class(self, row: tuple[str, ...]) -> str:
        return row[-1] if self.classes else ""


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:8], "big")


def _bound(hashes: array[int], share: float) -> int:
    """The hash below which this share of the rows is."""
    if len(hashes) > EXACT:
        return min(END, int(share * END))
    rank = round(share * len(hashes) - 1e-6)
    if rank >= len(hashes):
        return END
    values = np.asarray(hashes, np.uint64)
    bound = np.partition(values, rank)[rank]
    # These two differ by the number of equal texts.
    below, up_to = int((values < bound).sum()), int((values <= bound).sum())
    return int(bound) + (up_to - rank < rank - below)


@dataclass(frozen=True)
class RowRange(_FilteredRows):
    """The rows between two fractions of all rows, in file order."""

    is_part = True

    rows: Rows
    start: float
    stop: float

    def layout(self) -> dict[str, Any]:
        return {"of": self.rows.layout(), "part": [self.start, self.stop]}

    @cached_property
    def range(self) -> range:
        """The numbers of these rows."""
        total = sum(len(block[0]) for block in self.rows.blocks())
        return range(int(self.start * total), int(self.stop * total))

    def keeps(self, number: int, row: tuple[str, ...]) -> bool:
        return number in self.range
