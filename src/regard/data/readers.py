"""Rows of text from files: line-aligned pairs, tab-separated columns, JSON lines, plain text; one file or
many.

Every reader gives blocks of columns, each a list of texts: two columns (source, target) for pairs, one for a
language model's text. A text that could not be read is BAD, LONG or MISSING instead, and its row keeps its
place.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.data.text_files import BAD, MARK, check_file, is_unreadable, lines
from regard.errors import DataError

MISSING = f"{MARK} missing"  # marks a row without that column or field
ROWS = 16384  # rows of a block
Block = tuple[list[str], ...]
Advance = Callable[[int], None]


def ignore(count: int) -> None:
    """Ignore progress."""


class Rows(ABC):
    """Base class of readers: rows of text that can be read repeatedly."""

    files: tuple[Path, ...]
    paired: bool
    is_part = False  # the other rows of the files are another split

    @abstractmethod
    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        """Yield all rows in blocks of columns; call `advance` with the number of bytes read."""

    @abstractmethod
    def layout(self) -> dict[str, Any]:
        """How the files are read; together with their content it determines the rows."""

    def check(self) -> None:
        """Raise a DataError if a file is missing, empty or unreadable."""
        for path in self.files:
            check_file(path)

    def place(self, row: int, column: int) -> str:
        """The file, line and column of a text, for messages; rows count from 0."""
        return f"{self.files[min(column, len(self.files) - 1)]} line {row + 1}"

    def notes(self) -> list[str]:
        """What was assumed about the files, one line each."""
        return []

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        for block in self.blocks():
            yield from zip(*block, strict=True)


@dataclass(frozen=True)
class OneFile(Rows):
    """Base class of readers of one file."""

    path: Path

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.path,)


@dataclass(frozen=True)
class LinePairs(Rows):
    """Two files whose lines are translations of each other."""

    source: Path
    target: Path
    paired = True

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.source, self.target

    def layout(self) -> dict[str, Any]:
        return {"layout": "lines"}

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        sides = [chain.from_iterable(lines(path, advance=advance)) for path in self.files]
        count = 0
        while True:
            sources, targets = (list(islice(side, ROWS)) for side in sides)
            if len(sources) != len(targets):
                counts = [
                    count + len(block) + sum(1 for _ in side)
                    for block, side in zip((sources, targets), sides, strict=True)
                ]
                raise DataError(
                    f"{self.source} has {counts[0]:,} lines and {self.target} has {counts[1]:,}; "
                    "line n of one must translate line n of the other, so find the line where they diverge"
                )
            if not sources:
                return
            count += len(sources)
            yield sources, targets


@dataclass(frozen=True)
class Table(OneFile):
    """A file with tab-separated columns, counted from 1; one column is read for a language model, two for
    pairs.

    `labels` renames values of the last column: (("0", "negative"), ("1", "positive")).
    """

    columns: tuple[int, ...] = (1, 2)
    header: bool = False  # the first line names the columns
    labels: tuple[tuple[str, str], ...] = ()
    note: str = field(default="", compare=False)

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.columns) == 2

    def layout(self) -> dict[str, Any]:
        named = {"labels": dict(self.labels)} if self.labels else {}
        return {
            "layout": "table",
            "columns": [number - 1 for number in self.columns],
            "header": self.header,
            **named,
        }

    def notes(self) -> list[str]:
        return [self.note] if self.note else []

    def place(self, row: int, column: int) -> str:
        return f"{self.path} line {row + 1 + self.header}, column {self.columns[column]}"

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        skip = int(self.header)
        for block in lines(self.path, advance=advance):
            rows, skip = [line.split("\t") for line in block[skip:]], 0
            columns = [[_column(row, number) for row in rows] for number in self.columns]
            if self.labels:
                names = dict(self.labels)
                columns[-1] = [names.get(label, label) for label in columns[-1]]
            yield tuple(columns)


def _column(row: list[str], number: int) -> str:
    if is_unreadable(row[0]):
        return row[0]
    return row[number - 1] if number <= len(row) else MISSING


@dataclass(frozen=True)
class JsonLines(OneFile):
    """A file with one JSON object per line; `fields` name the texts, with dots into nested objects."""

    fields: tuple[str, ...]
    numbers: bool = False  # also accept numbers and booleans, as labels often are

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.fields) == 2

    def layout(self) -> dict[str, Any]:
        return {"layout": "json", "fields": list(self.fields)} | ({"numbers": True} if self.numbers else {})

    def notes(self) -> list[str]:
        return [f"{self.path.name}: " + " and ".join(f"field {field!r}" for field in self.fields)]

    def place(self, row: int, column: int) -> str:
        return f"{self.path} line {row + 1}, field {self.fields[column]}"

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        for block in lines(self.path, advance=advance):
            rows = [_parsed(line) for line in block]
            yield tuple([_field(row, field, self.numbers) for row in rows] for field in self.fields)


def _parsed(line: str) -> Any:
    if is_unreadable(line):
        return line
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _field(value: Any, field: str, numbers: bool = False) -> str:
    if isinstance(value, str) and is_unreadable(value):
        return value
    for name in [field] if isinstance(value, dict) and field in value else field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if numbers and isinstance(value, int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        return MISSING
    try:
        value.encode("utf-8")  # JSON can contain half a surrogate pair, such as \ud83d
    except UnicodeEncodeError:
        return BAD
    return value


@dataclass(frozen=True)
class TextLines(OneFile):
    """The lines of a text, or of the section between two fractions of its characters."""

    part: tuple[float, float] = (0.0, 1.0)
    paired = False

    def layout(self) -> dict[str, Any]:
        return {"layout": "text", "part": list(self.part)}

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        if self.part == (0.0, 1.0):
            for block in lines(self.path, advance=advance):
                yield (block,)
            return
        total = sum(len(line) + 1 for block in lines(self.path) for line in block)
        start, stop = (int(total * share) for share in self.part)
        position = 0
        for block in lines(self.path, advance=advance):
            kept = []
            for line in block:
                if position + len(line) >= start and position < stop:
                    kept.append(line[max(0, start - position) : stop - position])
                position += len(line) + 1
            yield (kept,)


@dataclass(frozen=True)
class ConcatRows(Rows):
    """Several readers, concatenated."""

    parts: tuple[Rows, ...]

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.parts[0].paired

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(path for part in self.parts for path in part.files)

    def layout(self) -> dict[str, Any]:
        return {"joined": [part.layout() for part in self.parts]}

    def notes(self) -> list[str]:
        return [note for part in self.parts for note in part.notes()]

    def place(self, row: int, column: int) -> str:
        for part in self.parts[:-1]:
            size = sum(len(block[0]) for block in part.blocks())
            if row < size:
                return part.place(row, column)
            row -= size
        return self.parts[-1].place(row, column)

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        for part in self.parts:
            yield from part.blocks(advance)


@dataclass(frozen=True)
class RenamedLabels(Rows):
    """Rows whose labels are renamed, without the spaces around them; several can get the same name.

    With `tags` the last column has tags joined by spaces, and `B-person` becomes `B-PER`.
    """

    rows: Rows
    labels: tuple[tuple[str, str], ...]
    tags: bool = False

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows.paired

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows.files

    def layout(self) -> dict[str, Any]:
        return {"of": self.rows.layout(), "labels": dict(self.labels), "tags": self.tags}

    def notes(self) -> list[str]:
        return self.rows.notes()

    def place(self, row: int, column: int) -> str:
        return self.rows.place(row, column)

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        for *texts, labels in self.rows.blocks(advance):
            yield *texts, [self._renamed(label) for label in labels]

    def _renamed(self, label: str) -> str:
        names = dict(self.labels)
        if not self.tags:
            return names.get(label.strip(), label.strip())
        parts = (tag.partition("-") for tag in label.split(" "))
        return " ".join(f"{prefix}{dash}{names.get(kind, kind)}" for prefix, dash, kind in parts)


def concatenate(readers: Sequence[Rows]) -> Rows:
    """One reader of all rows; a single reader is returned as it is."""
    return readers[0] if len(readers) == 1 else ConcatRows(tuple(readers))
