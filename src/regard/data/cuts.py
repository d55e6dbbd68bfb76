"""Parts of a set that has no parts: folds to test on in turn, a share held out, the first or second half."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from regard.data.reading import Advance, Block, Rows, ignore


class _Kept(Rows):
    """Some rows of another reader."""

    rows: Rows

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows.paired

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows.files

    @property
    def kept(self) -> list[int]:
        """The numbers of the rows that stay."""
        raise NotImplementedError

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        kept, start = set(self.kept), 0
        for block in self.rows.blocks(advance):
            inside = [i for i in range(len(block[0])) if start + i in kept]
            start += len(block[0])
            yield tuple([column[i] for i in inside] for column in block)

    def place(self, row: int, column: int) -> str:
        return self.rows.place(self.kept[row], column)


@dataclass(frozen=True)
class Cut(_Kept):
    """The rows inside a share `start` … `stop` of each class in the order of a hash of their texts, or those outside it.

    So every class is cut alike, the cut is the same on every machine, and equal texts, which lie side by side in that order, fall
    into the same part except where the cut goes between them. Without `classes` all rows are of one class.
    """

    rows: Rows
    start: float
    stop: float
    inside: bool = True
    classes: bool = True  # the last column is a class

    def layout(self) -> dict[str, Any]:
        shares = {"cut": [self.start, self.stop], "inside": self.inside, "classes": self.classes}
        return {"of": self.rows.layout(), **shares}

    @cached_property
    def kept(self) -> list[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        classes: dict[str, list[tuple[bytes, int]]] = defaultdict(list)
        for number, row in zip(count(), self.rows, strict=False):
            digest = hashlib.sha256(row[0].encode("utf-8", "surrogateescape")).digest()[:12]
            classes[row[-1] if self.classes else ""].append((digest, number))
        found: list[int] = []
        for members in classes.values():
            members.sort()
            first, last = (round(share * len(members) - 1e-6) for share in (self.start, self.stop))
            found += [number for at, (_, number) in enumerate(members) if (first <= at < last) == self.inside]
        return sorted(found)


@dataclass(frozen=True)
class Part(_Kept):
    """The rows between two shares of all rows, as they stand in the file."""

    rows: Rows
    start: float
    stop: float

    def layout(self) -> dict[str, Any]:
        return {"of": self.rows.layout(), "part": [self.start, self.stop]}

    @cached_property
    def kept(self) -> list[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        total = sum(len(block[0]) for block in self.rows.blocks())
        return list(range(int(self.start * total), int(self.stop * total)))
