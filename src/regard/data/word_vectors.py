"""Read pretrained word vectors: text and binary files of word2vec (also fastText's .vec) and text files of
GloVe.

    word2vec, text     a line "words width", then lines "word number number …"
    GloVe              the same without the first line
    word2vec, binary   a line "words width", then each word, a space and its numbers as little-endian
                       float32, with or without a line feed

Files may be plain or compressed with gzip or xz; the first bytes determine the format. A file has millions of
words and a vocabulary some thousands, so other words are skipped and take no memory.
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from regard.data.text_files import LONG, is_unreadable, lines, unpacked
from regard.errors import DataError
from regard.files.progress import track

MAX_WIDTH = 65_536  # numbers of a vector
MAX_WORD = 10_000  # bytes; more means that the file is not a vector file
MAX_LINE = 2_000_000  # characters
SNIFFED = 4096  # bytes read to detect the format
_HEADER = re.compile(rb"\s*(\d{1,18})[ \t]+(\d{1,18})[ \t\r]*\n")


def read_vectors(path: str | Path, wanted: Collection[str] | None = None) -> tuple[list[str], np.ndarray]:
    """Read the words of a file, in order, and their vectors, float32 (words, width).

    With `wanted`, only these words are returned. If a word occurs twice, the first vector is used. A
    DataError names the line or word of a changing width, a wrong header, a truncated file or a cell that is
    not a number. Cells of words that are not wanted are not parsed.
    """
    path = Path(path)
    start = _first_bytes(path)
    header = _HEADER.match(start)
    vectors = _Vectors(path, None if wanted is None else frozenset(wanted))
    with track(path.stat().st_size, "reading vectors", "bytes") as progress:
        if header is None:
            _read_text(vectors, None, progress.advance)
        else:
            vectors.count, vectors.width = _sizes(path, int(header[1]), int(header[2]))
            read = _read_binary if _is_binary(start[header.end() :], vectors.width) else _read_text
            read(vectors, header, progress.advance)
    return vectors.words, np.frombuffer(vectors.numbers, np.float32).reshape(
        len(vectors.words), vectors.width
    )


@dataclass
class _Vectors:
    """The vectors read so far, and the header of the file."""

    path: Path
    wanted: frozenset[str] | None
    count: int | None = None  # from the header
    width: int = 0
    words: list[str] = field(default_factory=list)
    numbers: array[float] = field(default_factory=lambda: array("f"))
    seen: set[str] = field(default_factory=set)

    def wants(self, word: str) -> bool:
        return word not in self.seen and (self.wanted is None or word in self.wanted)

    def add(self, word: str, numbers: array[float], place: str) -> None:
        if not np.isfinite(np.frombuffer(numbers, np.float32)).all():
            raise DataError(
                f"{place} of {self.path} has a number that is NaN or infinite, for {word[:40]!r}; "
                "remove that word"
            )
        self.words.append(word)
        self.seen.add(word)
        self.numbers.extend(numbers)


def _first_bytes(path: Path) -> bytes:
    """The first bytes of a file, decompressed: the header and the start of the first vector."""
    start = b""
    with contextlib.closing(unpacked(path)) as blocks:  # type: ignore[type-var]
        for block in blocks:
            start += block
            if len(start) >= SNIFFED:
                break
    return start[:SNIFFED].removeprefix(b"\xef\xbb\xbf")


def _sizes(path: Path, count: int, width: int) -> tuple[int, int]:
    if not count or not 1 <= width <= MAX_WIDTH:
        raise DataError(
            f"line 1 of {path} says {count} words of {width} numbers; "
            f"a header names at least one word and 1 to {MAX_WIDTH} numbers"
        )
    return count, width


def _is_binary(rows: bytes, width: int) -> bool:
    """True if the numbers after the first word are binary. As text they take at least 2 · width − 1 printable
    bytes.
    """
    numbers = (rows.partition(b" ")[2] or rows)[: 2 * width - 1]
    printed = sum(32 <= byte < 127 or byte in b"\t\r\n" for byte in numbers)
    return printed < 0.9 * len(numbers)


def _read_text(vectors: _Vectors, header: re.Match[bytes] | None, advance: Callable[[int], None]) -> None:
    rows = 0
    for number, line in enumerate(_lines(vectors.path, advance), 1):
        if not line.strip() or (header is not None and number == 1):
            continue
        if is_unreadable(line):
            if line == LONG:
                raise DataError(
                    f"line {number:,} of {vectors.path} is longer than {MAX_LINE:,} characters; "
                    "it is not a file of vectors"
                )
            rows += 1  # not UTF-8, so the word is in no vocabulary
            continue
        rows += 1
        _row(vectors, line.rstrip().replace("\t", " "), number)
    if vectors.count is not None and rows != vectors.count:
        cut = "the file was cut off" if rows < vectors.count else "its first line is wrong"
        raise DataError(
            f"line 1 of {vectors.path} says {vectors.count:,} words and {rows:,} follow; "
            f"{cut}, so fetch or write it again"
        )
    if not vectors.width:
        raise DataError(
            f"{vectors.path} has no vectors; give a file with a word and its numbers on each line"
        )


def _lines(path: Path, advance: Callable[[int], None]) -> Iterator[str]:
    for block in lines(path, max_characters=MAX_LINE, advance=advance):
        yield from block


def _row(vectors: _Vectors, line: str, number: int) -> None:
    """Split a line into word and numbers, from the right: some words of GloVe contain spaces (". . .")."""
    spaces = line.count(" ")
    if not vectors.width:
        vectors.width = spaces
        if not 1 <= spaces <= MAX_WIDTH:
            raise DataError(
                f"line {number:,} of {vectors.path} is {line[:40]!r}; "
                f"a line is a word and 1 to {MAX_WIDTH} numbers"
            )
    word, *cells = line.rsplit(" ", vectors.width)
    # Numbers at the end of the word mean that the line has more numbers than the lines before.
    rest_of_word = word.split(" ")[1:]
    if spaces < vectors.width or (rest_of_word and all(map(_is_number, rest_of_word))):
        raise DataError(
            f"line {number:,} of {vectors.path} has {spaces} numbers and the lines before have "
            f"{vectors.width}; fix or remove that line"
        )
    if vectors.wants(word):
        try:
            numbers = array("f", map(float, cells))
        except ValueError:
            column, bad = next((i, cell) for i, cell in enumerate(cells, 2) if not _is_number(cell))
            raise DataError(
                f"line {number:,}, column {column} of {vectors.path} is {bad[:40]!r}, where a number is "
                "expected; fix or remove that line"
            ) from None
        vectors.add(word, numbers, f"line {number:,}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_binary(vectors: _Vectors, header: re.Match[bytes] | None, advance: Callable[[int], None]) -> None:
    assert header is not None and vectors.count is not None
    with contextlib.closing(unpacked(vectors.path, advance=advance)) as blocks:  # type: ignore[type-var]
        stream = _Stream(blocks)
        stream.until(b"\n")
        for number in range(1, vectors.count + 1):
            name = stream.until(b" ")
            data = None if name is None else stream.take(4 * vectors.width)
            if name is None or data is None:
                raise DataError(
                    f"{vectors.path} ends at word {number:,} of the {vectors.count:,} that its first line "
                    f"names, or does not have {vectors.width} float32 numbers per word; "
                    "fetch or write it again"
                )
            word = name.lstrip(b"\n").decode("utf-8", "replace")
            if vectors.wants(word):
                vectors.add(word, array("f", np.frombuffer(data, "<f4").tolist()), f"word {number:,}")
        if stream.rest().strip():
            raise DataError(
                f"{vectors.path} continues after the {vectors.count:,} words that its first line names; "
                "fetch or write it again"
            )


class _Stream:
    """A byte stream over blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._buffer, self._position = blocks, b"", 0

    def _more(self) -> bool:
        block = next(self._blocks, b"")
        self._buffer, self._position = self._buffer[self._position :] + block, 0
        return bool(block)

    def until(self, end: bytes) -> bytes | None:
        """Read up to the next `end` and skip it; None if there is none within MAX_WORD bytes."""
        while (position := self._buffer.find(end, self._position)) < 0:
            if len(self._buffer) - self._position > MAX_WORD or not self._more():
                return None
        data, self._position = self._buffer[self._position : position], position + 1
        return data if len(data) <= MAX_WORD else None

    def take(self, size: int) -> bytes | None:
        while len(self._buffer) - self._position < size:
            if not self._more():
                return None
        self._position += size
        return self._buffer[self._position - size : self._position]

    def rest(self) -> bytes:
        """The next bytes of the stream, at most SNIFFED."""
        while len(self._buffer) - self._position < SNIFFED and self._more():
            pass
        return self._buffer[self._position : self._position + SNIFFED]
