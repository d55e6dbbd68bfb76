"""What is to be translated, classified or tagged: lines of files or of standard input; as they are, a column, or a field of JSON.

Lines are read as a stream and handed on in chunks, so that a corpus of any size fits in memory. Only \\n ends a line; a \\r before
it is dropped. Bytes that are not UTF-8 become � and are counted, or stop the work where `strict` is wanted.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from regard.data.text_files import check_file, unpacked
from regard.errors import DataError
from regard.files.progress import track

LINES, CHARACTERS = 4096, 1 << 17  # of a chunk; a job that was stopped repeats at most one
LONGEST = 10_000_000  # bytes of a line; beyond it is no text
BLOCK = 1 << 20
SHOWN = 5  # line numbers that a report names


class Layout(Protocol):
    """Where in a line the text is. `text` raises ValueError with the reason when it is not there."""

    def text(self, line: str) -> str: ...


@dataclass(frozen=True)
class WholeLine:
    """The line is the text."""

    def text(self, line: str) -> str:
        return line


@dataclass(frozen=True)
class Column:
    """A column of a table, counted from 1. With `quotes` a cell in quotation marks may hold the separator and line ends."""

    number: int
    separator: str = "\t"
    quotes: bool = False

    def text(self, line: str) -> str:
        found = self.cells(line) if line else [""] * self.number
        if len(found) < self.number:
            raise ValueError(
                f"has {len(found)} column{'s' * (len(found) > 1)} and no column {self.number}; check --column"
            )
        return found[self.number - 1]

    def cells(self, line: str) -> list[str]:
        """All cells of a row."""
        if not self.quotes:
            return line.split(self.separator)
        try:
            return next(csv.reader(io.StringIO(line, newline=""), delimiter=self.separator), [""])
        except csv.Error as error:
            raise ValueError(f"cannot be read as a row of a table ({error}); mend it") from None

    def ends(self, raw: bytes, within: bool) -> bool:
        """Whether a row ends with this line, which may begin within a cell; otherwise it goes on in the next."""
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
    """A word a line, up to a blank line: sentences of a CoNLL file, each a row with all its lines in it."""

    def text(self, line: str) -> str:
        return line

    @staticmethod
    def ends(raw: bytes, within: bool) -> bool:
        """Whether the sentence ends with this line."""
        return not raw.strip()


@dataclass(frozen=True)
class Field:
    """A field of a JSON object, with dots into objects within (translation.en)."""

    name: str

    def text(self, line: str) -> str:
        if not line.strip():
            return ""
        found = parsed(line)
        for name in [self.name] if self.name in found else self.name.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, str):
            raise ValueError(f"has no text in the field {self.name!r}; check --field")
        return found


def parsed(line: str) -> dict[str, Any]:
    """The object of a line of JSON."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object; mend or remove it, or leave out --field to take whole lines")
    return found


@dataclass(frozen=True)
class Row:
    """A line, and the text in it."""

    line: str
    text: str


@dataclass(frozen=True)
class Chunk:
    """Rows that are translated and written together; `first` counts the lines before, `digest` knows all up to its end."""

    first: int
    rows: list[Row]
    digest: str


@dataclass
class BadLine:
    """Lines that were not UTF-8."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        self.count += 1
        if self.count <= SHOWN:
            self.first.append(place)

    def __str__(self) -> str:
        lines = "line is" if self.count == 1 else "lines are"
        more = ", …" if self.count > SHOWN else ""
        return (
            f"{self.count:,} {lines} not UTF-8 ({', '.join(self.first)}{more}); what cannot be read becomes �"
        )


@dataclass
class Source:
    """Texts from memory, from files in their order, or from standard input (`-`)."""

    files: tuple[Path, ...] = ()
    texts: tuple[str, ...] = ()
    layout: Layout = field(default_factory=WholeLine)
    strict: bool = False
    header: bool = False  # the first line of every file names its columns

    @property
    def known(self) -> bool:
        """Whether it can be read twice, and so be looked through before the work starts."""
        return all(path.is_file() for path in self.files)

    def check(self) -> None:
        """Stop in one sentence if a file is missing or cannot be read; an empty one is fine and has no lines."""
        for path in self.files:
            if str(path) != "-" and (
                not path.exists() or path.is_dir() or (path.is_file() and path.stat().st_size)
            ):
                check_file(path)

    def survey(self) -> tuple[int, BadLine]:
        """How many lines there are, after looking at every one."""
        size = sum(path.stat().st_size for path in self.files)
        with track(size, "reading", "bytes") as progress:
            reading = Reader(self, progress.advance)
            return sum(len(chunk.rows) for chunk in reading.chunks()), reading.bad


class Reader:
    """One way through a source."""

    def __init__(self, source: Source, advance: Callable[[int], None] = lambda n: None) -> None:
        self.bad, self.done = BadLine(), 0
        self._layout, self._strict, self._many = source.layout, source.strict, len(source.files) > 1
        self._hash = hashlib.sha256()
        self._blocks = _blocks(source, advance)
        self._left: list[_Block] = []

    def skip(self, count: int) -> str:
        """Pass over the first lines; gives the digest of them."""
        while self.done < count and (block := self._next()) is not None:
            kept = block.lines[: count - self.done]
            self._count(kept)
            if len(kept) < len(block.lines):
                self._left.append(
                    _Block(block.name, block.number + len(kept), block.lines[len(kept) :], block.live)
                )
        return self._hash.hexdigest()

    def chunks(self) -> Iterator[Chunk]:
        """The lines that are left. What comes in live is passed on as it comes."""
        rows: list[Row] = []
        characters = 0
        while (block := self._next()) is not None:
            for i, raw in enumerate(block.lines):
                rows.append(self._row(raw, block.name, block.number + i))
                self._count([raw])
                characters += len(raw)
                if len(rows) >= LINES or characters >= CHARACTERS:
                    yield Chunk(self.done - len(rows), rows, self._hash.hexdigest())
                    rows, characters = [], 0
            if rows and block.live:
                yield Chunk(self.done - len(rows), rows, self._hash.hexdigest())
                rows, characters = [], 0
        if rows:
            yield Chunk(self.done - len(rows), rows, self._hash.hexdigest())

    def _next(self) -> _Block | None:
        return self._left.pop() if self._left else next(self._blocks, None)

    def _count(self, lines: Sequence[bytes]) -> None:
        self.done += len(lines)
        for line in lines:
            self._hash.update(line)
            self._hash.update(b"\n")

    def _row(self, raw: bytes, name: str, number: int) -> Row:
        place = f"{name} line {number:,}" if self._many else f"line {number:,}"
        try:
            line = raw.removesuffix(b"\r").decode("utf-8")
            text = self._layout.text(line)
            text.encode("utf-8")  # JSON can spell half a character, \ud83d alone
        except UnicodeError:
            if self._strict:
                raise DataError(
                    f"line {number:,} of {name} is not UTF-8; mend it, or leave out --strict to go on with �"
                ) from None
            self.bad.add(place)
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
    """Whole lines as bytes: where they are from, the number of the first, and whether the next may be long in coming."""

    name: str
    number: int
    lines: list[bytes]
    live: bool


def _blocks(source: Source, advance: Callable[[int], None]) -> Iterator[_Block]:
    if source.texts:
        yield _Block("the text", 1, [line.encode("utf-8", "surrogateescape") for line in source.texts], False)
    for path in source.files:
        live = not path.is_file()
        name = "standard input" if str(path) == "-" else str(path)
        if live or path.stat().st_size:
            found = _lines(name, _live(path) if live else unpacked(path, advance=advance), live)
            found = _rows(found, source.layout) if _spans_lines(source.layout) else found
            yield from _without_first(found) if source.header else found


def _spans_lines(layout: Layout) -> TypeGuard[Column | Sentences]:
    """True if a row may be several lines."""
    return isinstance(layout, Sentences) or (isinstance(layout, Column) and layout.quotes)


def _rows(blocks: Iterator[_Block], layout: Column | Sentences) -> Iterator[_Block]:
    """A row of several lines, as cells may hold the ends of lines, is one from here on, known by the number of its first."""
    row: list[bytes] = []  # lines of a row that is not whole
    name, first, size = "", 0, 0
    for block in blocks:
        name, start, whole = block.name, block.number, []
        for number, line in enumerate(block.lines, block.number):
            first, size = (first, size + len(line)) if row else (number, len(line))
            row.append(line)
            if not layout.ends(line, len(row) > 1):
                if size > LONGEST:
                    raise _never_closed(layout, name, first)
                continue
            if first != start + len(whole):  # a row of several lines came before
                if whole:
                    yield _Block(name, start, whole, block.live)
                start, whole = first, []
            whole.append(b"\n".join(row))
            row = []
        if whole:
            yield _Block(name, start, whole, block.live)
    if row and isinstance(layout, Column):
        raise _never_closed(layout, name, first)
    if row:  # the last sentence needs no blank line
        yield _Block(name, first, [b"\n".join(row)], False)


def _never_closed(layout: Column | Sentences, name: str, line: int) -> DataError:
    if isinstance(layout, Sentences):
        return DataError(
            f"line {line:,} of {name} begins a sentence of more than {LONGEST:,} bytes; put blank lines between sentences"
        )
    return DataError(
        f"line {line:,} of {name} opens a quotation mark that nothing closes; close it, or double it within a cell"
    )


def _without_first(blocks: Iterator[_Block]) -> Iterator[_Block]:
    for i, block in enumerate(blocks):
        if i:
            yield block
        elif len(block.lines) > 1:
            yield _Block(block.name, block.number + 1, block.lines[1:], block.live)


def _live(path: Path) -> Iterator[bytes]:
    """What arrives, when it arrives: a person at a terminal is answered line by line."""
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


def _lines(name: str, blocks: Iterator[bytes], live: bool) -> Iterator[_Block]:
    number, tail = 1, b""
    for i, block in enumerate(blocks):
        found = (tail + (block.removeprefix(b"\xef\xbb\xbf") if i == 0 else block)).split(b"\n")
        tail = found.pop()
        if len(tail) > LONGEST or any(len(line) > LONGEST for line in found):
            number += next((i for i, line in enumerate(found) if len(line) > LONGEST), len(found))
            raise DataError(
                f"line {number:,} of {name} is longer than {LONGEST:,} bytes, as no text is; cut it into lines first"
            )
        if found:
            yield _Block(name, number, found, live)
            number += len(found)
    if tail:
        yield _Block(name, number, [tail], live)
