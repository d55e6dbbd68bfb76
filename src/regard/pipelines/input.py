"""The input of jobs: lines of files or standard input, of which a column or a JSON field may be the text.

Lines are streamed in chunks, so a corpus of any size fits in memory. Only \\n ends a line; a \\r before it is
dropped. Bytes that are not UTF-8 become � and are counted; with `strict` they are an error.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from regard.data.text_files import check_file, check_utf16, unpacked
from regard.errors import DataError
from regard.files.progress import track

CHUNK_LINES, CHUNK_BYTES = 4096, 1 << 17  # a chunk ends at either; a resumed job repeats at most one
MAX_BYTES = 10_000_000  # per line
BLOCK = 1 << 20  # bytes per read
BINARY_BYTES = 4096  # of a file, by which binary data are recognised
REPORTED = 5  # invalid lines that are named


class Layout(Protocol):
    """Where the text of a line is. `text` raises ValueError with the reason if there is none."""

    def text(self, line: str) -> str: ...


@dataclass(frozen=True)
class WholeLine:
    """The line is the text."""

    def text(self, line: str) -> str:
        return line


@dataclass(frozen=True)
class Column:
    """A column of a table, from 1. With `quotes` a quoted cell may contain the separator and line ends."""

    number: int
    separator: str = "\t"
    quotes: bool = False

    def text(self, line: str) -> str:
        cells = self.cells(line) if line else [""] * self.number
        if len(cells) < self.number:
            raise ValueError(
                f"has {len(cells)} column{'s' * (len(cells) > 1)} and no column {self.number}; check --column"
            )
        return cells[self.number - 1]

    def cells(self, line: str) -> list[str]:
        """All cells of a row."""
        if not self.quotes:
            return line.split(self.separator)
        csv.field_size_limit(MAX_BYTES)  # of the process, so others may have changed it
        try:
            return next(csv.reader(io.StringIO(line, newline=""), delimiter=self.separator), [""])
        except csv.Error as error:
            raise ValueError(f"cannot be parsed as a row of a table ({error}); fix it") from None

    def ends(self, raw: bytes, within: bool) -> bool:
        """Whether a row ends with this line; `within`: it begins inside a quoted cell."""
        if b'"' not in raw:
            return not within
        raw, at, pattern = b'"' + raw if within else raw, 0, _cell_pattern(self.separator)
        while (cell := pattern.match(raw, at)) is not None:
            if cell.end() == len(raw) and not cell.group().endswith(self.separator.encode()):
                return True
            at = cell.end()
        return False


@cache
def _cell_pattern(separator: str) -> re.Pattern[bytes]:
    """A cell and the separator after it, or the end of the row."""
    s = re.escape(separator).encode()
    return re.compile(rb'(?:"(?:[^"]|"")*"(?!")[^%b]*|[^"%b][^%b]*|)(?:%b|\Z)' % (s, s, s, s))


@dataclass(frozen=True)
class Sentences:
    """Sentences of a CoNLL file: one word per line, up to a blank line. A row is a sentence with all its
    lines.
    """

    def text(self, line: str) -> str:
        return line

    @staticmethod
    def ends(raw: bytes, within: bool) -> bool:
        """Whether the sentence ends with this line."""
        return not raw.strip()


@dataclass(frozen=True)
class Field:
    """A field of a JSON object; dots lead into nested objects (translation.en)."""

    name: str

    def text(self, line: str) -> str:
        if not line.strip():
            return ""
        value = parsed(line)
        for name in [self.name] if self.name in value else self.name.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, str):
            raise ValueError(f"has no text in the field {self.name!r}; check --field")
        return value


def parsed(line: str) -> dict[str, Any]:
    """Parse a line of JSON."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object; fix or remove it, or leave out --field to use whole lines")
    return value


@dataclass(frozen=True)
class Row:
    """A line, and the text in it."""

    line: str
    text: str


@dataclass(frozen=True)
class Chunk:
    """Rows that are processed together."""

    first: int  # number of lines before the chunk
    rows: list[Row]
    digest: str  # SHA-256 of all lines up to the end of the chunk


@dataclass
class InvalidLines:
    """The lines that are not UTF-8."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        self.count += 1
        if self.count <= REPORTED:
            self.first.append(place)

    def __str__(self) -> str:
        lines = "line is" if self.count == 1 else "lines are"
        more = ", …" if self.count > REPORTED else ""
        return f"{self.count:,} {lines} not UTF-8 ({', '.join(self.first)}{more}); invalid bytes become �"


@dataclass
class Source:
    """Texts from memory, from files in their order, or from standard input (`-`)."""

    files: tuple[Path, ...] = ()
    texts: tuple[str, ...] = ()
    layout: Layout = field(default_factory=WholeLine)
    strict: bool = False
    header: bool = False  # the first line of every file names its columns
    chunk_lines: int | None = None  # None: CHUNK_LINES and CHUNK_BYTES bound a chunk

    @property
    def rereadable(self) -> bool:
        """True if the input can be read twice, and so be checked before the job starts; False for pipes."""
        return all(path.is_file() for path in self.files)

    def check(self) -> None:
        """Raise an error if a file is missing or cannot be read; empty files are allowed."""
        for path in self.files:
            if str(path) != "-" and (
                not path.exists() or path.is_dir() or (path.is_file() and path.stat().st_size)
            ):
                check_file(path)

    def count_lines(self) -> tuple[int, InvalidLines]:
        """Read all lines; return their number and those that are not UTF-8."""
        size = sum(path.stat().st_size for path in self.files)
        with track(size, "reading", "bytes") as progress:
            reader = Reader(self, progress.advance)
            return sum(len(chunk.rows) for chunk in reader.chunks()), reader.invalid


class Reader:
    """Reads a source once."""

    def __init__(self, source: Source, advance: Callable[[int], None] = lambda n: None) -> None:
        self.invalid, self.done = InvalidLines(), 0  # done: lines read
        self._layout, self._strict, self._several_files = source.layout, source.strict, len(source.files) > 1
        self._max_lines, self._max_bytes = CHUNK_LINES, CHUNK_BYTES
        if source.chunk_lines is not None:
            self._max_lines, self._max_bytes = source.chunk_lines, sys.maxsize
        self._hash = hashlib.sha256()
        self._blocks = _blocks(source, advance)
        self._remaining: list[_Block] = []

    def skip(self, count: int) -> str:
        """Skip the first lines; return their digest."""
        while self.done < count and (block := self._next()) is not None:
            n = min(count - self.done, len(block.lines))
            self._count(block.lines[:n])
            if n < len(block.lines):
                self._remaining.append(_Block(block.name, block.number + n, block.lines[n:], block.live))
        return self._hash.hexdigest()

    def chunks(self) -> Iterator[Chunk]:
        """Yield the remaining lines; those of a pipe or terminal as soon as they arrive."""
        rows: list[Row] = []
        size = 0
        while (block := self._next()) is not None:
            for i, raw in enumerate(block.lines):
                rows.append(self._row(raw, block.name, block.number + i))
                self._count([raw])
                size += len(raw)
                if len(rows) >= self._max_lines or size >= self._max_bytes:
                    yield Chunk(self.done - len(rows), rows, self._hash.hexdigest())
                    rows, size = [], 0
            if rows and block.live:
                yield Chunk(self.done - len(rows), rows, self._hash.hexdigest())
                rows, size = [], 0
        if rows:
            yield Chunk(self.done - len(rows), rows, self._hash.hexdigest())

    def _next(self) -> _Block | None:
        return self._remaining.pop() if self._remaining else next(self._blocks, None)

    def _count(self, lines: Sequence[bytes]) -> None:
        self.done += len(lines)
        for line in lines:
            self._hash.update(line)
            self._hash.update(b"\n")

    def _row(self, raw: bytes, name: str, number: int) -> Row:
        place = f"{name} line {number:,}" if self._several_files else f"line {number:,}"
        try:
            line = raw.removesuffix(b"\r").decode("utf-8")
            text = self._layout.text(line)
            text.encode("utf-8")  # JSON can contain unpaired surrogates such as \ud83d
        except UnicodeError:
            if self._strict:
                raise DataError(
                    f"line {number:,} of {name} is not UTF-8; "
                    "fix it, or leave out --strict to replace invalid bytes by �"
                ) from None
            self.invalid.add(place)
            line = raw.removesuffix(b"\r").decode("utf-8", errors="replace")
            return Row(line, self._text(line, name, number).encode("utf-8", "replace").decode("utf-8"))
        except ValueError as error:
            raise DataError(f"line {number:,} of {name} {error}") from None
        return Row(line, text)

    def _text(self, line: str, name: str, number: int) -> str:
        try:
            return self._layout.text(line)
        except ValueError as error:
            raise DataError(f"line {number:,} of {name} {error}") from None


@dataclass(frozen=True)
class _Block:
    """Complete lines, as bytes."""

    name: str  # of the file
    number: int  # of the first line
    lines: list[bytes]
    live: bool  # from a pipe or terminal


def _blocks(source: Source, advance: Callable[[int], None]) -> Iterator[_Block]:
    if source.texts:
        yield _Block("the text", 1, [line.encode("utf-8", "surrogateescape") for line in source.texts], False)
    for path in source.files:
        live = not path.is_file()
        name = "standard input" if str(path) == "-" else str(path)
        if live or path.stat().st_size:
            blocks = _lines(name, _read_live(path) if live else unpacked(path, advance=advance), live)
            blocks = _rows(blocks, source.layout) if _spans_lines(source.layout) else blocks
            yield from _without_header(blocks) if source.header else blocks


def _spans_lines(layout: Layout) -> TypeGuard[Column | Sentences]:
    """True if a row may have several lines."""
    return isinstance(layout, Sentences) or (isinstance(layout, Column) and layout.quotes)


def _rows(blocks: Iterator[_Block], layout: Column | Sentences) -> Iterator[_Block]:
    """Join the lines of each row; a row has the number of its first line."""
    row: list[bytes] = []  # lines of an incomplete row
    name, first, size = "", 0, 0
    for block in blocks:
        name, start, complete = block.name, block.number, []
        for number, line in enumerate(block.lines, block.number):
            first, size = (first, size + len(line)) if row else (number, len(line))
            row.append(line)
            if not layout.ends(line, len(row) > 1):
                if size > MAX_BYTES:
                    raise _unclosed(layout, name, first)
                continue
            if first != start + len(complete):  # after a row of several lines
                if complete:
                    yield _Block(name, start, complete, block.live)
                start, complete = first, []
            complete.append(b"\n".join(row))
            row = []
        if complete:
            yield _Block(name, start, complete, block.live)
    if row and isinstance(layout, Column):
        raise _unclosed(layout, name, first)
    if row:  # the last sentence needs no blank line
        yield _Block(name, first, [b"\n".join(row)], False)


def _unclosed(layout: Column | Sentences, name: str, line: int) -> DataError:
    if isinstance(layout, Sentences):
        return DataError(
            f"line {line:,} of {name} begins a sentence of more than {MAX_BYTES:,} bytes; "
            "put blank lines between sentences"
        )
    return DataError(
        f"line {line:,} of {name} opens a quotation mark that is never closed; "
        "close it, or double it in a cell"
    )


def _without_header(blocks: Iterator[_Block]) -> Iterator[_Block]:
    for i, block in enumerate(blocks):
        if i:
            yield block
        elif len(block.lines) > 1:
            yield _Block(block.name, block.number + 1, block.lines[1:], block.live)


def _read_live(path: Path) -> Iterator[bytes]:
    """Yield bytes as they arrive, so that a person at a terminal gets an answer to each line."""
    try:
        handle = os.dup(0) if str(path) == "-" else os.open(path, os.O_RDONLY)
        try:
            while block := os.read(handle, BLOCK):
                yield block
        finally:
            os.close(handle)
    except OSError as error:
        name = "standard input" if str(path) == "-" else path
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None


def _check_text(name: str, start: bytes) -> None:
    """Raise a DataError for UTF-16, and for binary data: many zero bytes, or some and no UTF-8."""
    check_utf16(name, start)
    start = start[:BINARY_BYTES]
    zeros = start.count(b"\0")
    if zeros and (zeros > len(start) / 10 or not _is_utf8(start)):
        raise DataError(f"{name} is binary, not text; give a text file in UTF-8")


def _is_utf8(start: bytes) -> bool:
    """Whether these may be the first bytes of UTF-8; the last character may be incomplete."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return True


def _lines(name: str, blocks: Iterator[bytes], live: bool) -> Iterator[_Block]:
    number, tail = 1, b""
    for i, block in enumerate(blocks):
        if i == 0:
            _check_text(name, block)
        lines = (tail + (block.removeprefix(b"\xef\xbb\xbf") if i == 0 else block)).split(b"\n")
        tail = lines.pop()
        if len(tail) > MAX_BYTES or any(len(line) > MAX_BYTES for line in lines):
            number += next((i for i, line in enumerate(lines) if len(line) > MAX_BYTES), len(lines))
            raise DataError(
                f"line {number:,} of {name} is longer than {MAX_BYTES:,} bytes; split it into lines first"
            )
        if lines:
            yield _Block(name, number, lines, live)
            number += len(lines)
    if tail:
        yield _Block(name, number, [tail], live)
