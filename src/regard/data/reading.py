"""Rows of text from files: line-aligned pairs, tab-separated columns, JSON lines, plain text; one file or many.

Every reader gives blocks of columns, each a list of texts: two columns (source, target) for pairs, one for a language model's
text. A text that could not be read is BAD, LONG or MISSING instead, and its row keeps its place.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.data.files import BAD, check_file, lines, suffix
from regard.errors import DataError

MISSING = "\udcff missing"  # a row without that column or field
ROWS = 16384  # of one block
Block = tuple[list[str], ...]
Advance = Callable[[int], None]


def ignore(count: int) -> None:
    """Nobody wants to hear of progress."""


class Rows(ABC):
    """Something that rows of text can be read from, again and again."""

    files: tuple[Path, ...]
    paired: bool

    @abstractmethod
    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        """All rows, a few thousand at a time, as columns of equal length; `advance` hears of the bytes read."""

    @abstractmethod
    def layout(self) -> dict[str, Any]:
        """How the files are read: with the files' contents this decides the rows."""

    def check(self) -> None:
        """Stop in one sentence if a file is missing, empty or unreadable."""
        for path in self.files:
            check_file(path)

    def place(self, row: int, column: int) -> str:
        """Where a person finds a text: the file and line of row `row`, counted from 0, and its column."""
        return f"{self.files[min(column, len(self.files) - 1)]} line {row + 1}"

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        for block in self.blocks():
            yield from zip(*block, strict=True)


@dataclass(frozen=True)
class OneFile(Rows):
    """What is read from a single file."""

    path: Path

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.path,)


@dataclass(frozen=True)
class LinePairs(Rows):
    """Two files whose lines translate each other."""

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
            left, right = (list(islice(side, ROWS)) for side in sides)
            if len(left) != len(right):
                counts = [count + len(block) + sum(1 for _ in side) for block, side in zip((left, right), sides, strict=True)]
                raise DataError(
                    f"{self.source} has {counts[0]:,} lines and {self.target} has {counts[1]:,}; "
                    "line n of one must translate line n of the other, so find where they part before training on them"
                )
            if not left:
                return
            count += len(left)
            yield left, right


@dataclass(frozen=True)
class Table(OneFile):
    """A file with tab-separated columns, counted from 0; one column is read for a language model, two for pairs."""

    columns: tuple[int, ...] = (0, 1)
    header: bool = False  # the first line names the columns

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.columns) == 2

    def layout(self) -> dict[str, Any]:
        return {"layout": "table", "columns": list(self.columns), "header": self.header}

    def place(self, row: int, column: int) -> str:
        return f"{self.path} line {row + 1 + self.header}, column {self.columns[column] + 1}"

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        skip = int(self.header)
        for block in lines(self.path, advance=advance):
            rows, skip = [line.split("\t") for line in block[skip:]], 0
            yield tuple([_column(row, column) for row in rows] for column in self.columns)


def _column(row: list[str], column: int) -> str:
    if row[0][:1] == "\udcff":  # the whole line could not be read
        return row[0]
    return row[column] if column < len(row) else MISSING


@dataclass(frozen=True)
class JsonLines(OneFile):
    """A file with one JSON object per line; `fields` name the texts, with dots into objects (translation.en)."""

    fields: tuple[str, ...]
    numbers: bool = False  # numbers and true or false are texts too, as labels often are

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.fields) == 2

    def layout(self) -> dict[str, Any]:
        return {"layout": "json", "fields": list(self.fields)} | ({"numbers": True} if self.numbers else {})

    def place(self, row: int, column: int) -> str:
        return f"{self.path} line {row + 1}, field {self.fields[column]}"

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        for block in lines(self.path, advance=advance):
            rows = [_parsed(line) for line in block]
            yield tuple([_field(row, field, self.numbers) for row in rows] for field in self.fields)


def _parsed(line: str) -> Any:
    if line[:1] == "\udcff":
        return line
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _field(found: Any, field: str, numbers: bool = False) -> str:
    if isinstance(found, str) and found[:1] == "\udcff":
        return found
    for name in [field] if isinstance(found, dict) and field in found else field.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if numbers and isinstance(found, int | float):
        return json.dumps(found)
    if not isinstance(found, str):
        return MISSING
    try:
        found.encode("utf-8")  # JSON can spell half a character, \ud83d alone
    except UnicodeEncodeError:
        return BAD
    return found


@dataclass(frozen=True)
class Text(OneFile):
    """A text for a language model, line by line; or the part of it between two shares of its characters."""

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
        place = 0
        for block in lines(self.path, advance=advance):
            kept = []
            for line in block:
                if place + len(line) >= start and place < stop:
                    kept.append(line[max(0, start - place) : stop - place])
                place += len(line) + 1
            yield (kept,)


@dataclass(frozen=True)
class Drawn(Rows):
    """The rows of a set without official splits that belong to one split, by a hash of one column.

    All rows with the same text in that column fall into the same split, so that no sentence is both learned and asked. Of 100
    texts about two are validation and two are test.
    """

    rows: Rows
    column: int
    split: str

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows.paired

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows.files

    def layout(self) -> dict[str, Any]:
        return {**self.rows.layout(), "drawn": self.split, "by": self.column}

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        for block in self.rows.blocks(advance):
            kept = [row for row in zip(*block, strict=True) if drawn_split(row[self.column]) == self.split]
            yield tuple([row[i] for row in kept] for i in range(len(block)))


def drawn_split(text: str) -> str:
    """The split that a text belongs to by its hash: train, validation or test."""
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:8], "big") % 50
    return {0: "validation", 1: "test"}.get(number, "train")


@dataclass(frozen=True)
class Joined(Rows):
    """Several readers, one after the other."""

    parts: tuple[Rows, ...]

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.parts[0].paired

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(path for part in self.parts for path in part.files)

    def layout(self) -> dict[str, Any]:
        return {"joined": [part.layout() for part in self.parts]}

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


def from_files(files: Sequence[Any], source: str | int | None, target: str | int | None, paired: bool) -> Rows:
    """A reader for files that a user names, by what their names end in (.gz and .xz do not count).

    .jsonl: one object per line, with the fields `source` and `target` (for a text: `source`, or `text`).
    .tsv: columns by number, or by name where the first line names them; else the first two.
    Otherwise pairs of files: [[a.en, a.de], [b.en, b.de]]; or all in one list, told apart by the endings `source` and `target`,
    or two files, the source first. A text may be any number of files.
    """
    if not files:
        raise DataError("no files are named; give at least one")
    parts: list[Rows] = []
    plain: list[Path] = []
    for item in files:
        if isinstance(item, (list, tuple)):
            if len(item) != 2 or not paired:
                raise DataError(f"an inner list names two files, the source and its translation; got {list(map(str, item))}")
            parts.append(LinePairs(*_directed([Path(each).expanduser() for each in item], source, target)))
            continue
        path = Path(item).expanduser()
        if suffix(path) in ("jsonl", "ndjson"):
            names = (source, target) if paired else (source or "text",)
            parts.append(JsonLines(path, tuple(str(name) for name in names if name is not None)))
            if len(names) != len(parts[-1].layout()["fields"]):
                raise DataError(f"the fields of {path} are not known; name them as data.source and data.target")
        elif suffix(path) == "tsv" and paired:
            parts.append(_table(path, source, target))
        else:
            plain.append(path)
    parts += [Text(path) for path in plain] if not paired else _pairs(plain, source, target)
    return parts[0] if len(parts) == 1 else Joined(tuple(parts))


def _table(path: Path, source: str | int | None, target: str | int | None) -> Table:
    check_file(path)
    first = next(iter(lines(path)), [""])[0].split("\t")
    if source in first and target in first:
        return Table(path, (first.index(str(source)), first.index(str(target))), header=True)
    columns = tuple(int(str(given)) if str(given).isdigit() else place for place, given in enumerate((source, target)))
    return Table(path, columns)


def _pairs(paths: list[Path], source: str | int | None, target: str | int | None) -> list[Rows]:
    """Files in one list, as pairs: by their endings, in the order in which they are named."""
    left = [path for path in paths if suffix(path) == source]
    right = [path for path in paths if suffix(path) == target]
    if len(paths) == 2 and not (left and right):
        left, right = paths[:1], paths[1:]
    if len(left) + len(right) != len(paths) or len(left) != len(right):
        shown = ", ".join(map(str, paths))
        raise DataError(
            f"it is not clear which of these files translate each other: {shown}; write pairs, [[a.en, a.de], [b.en, b.de]], "
            f"or end their names in .{source} and .{target}"
        )
    return [LinePairs(*pair) for pair in zip(left, right, strict=True)]


def _directed(pair: list[Path], source: str | int | None, target: str | int | None) -> list[Path]:
    """Two files that translate each other, source first where their endings tell."""
    return pair[::-1] if suffix(pair[0]) == target and suffix(pair[1]) == source else pair
