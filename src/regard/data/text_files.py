"""Read lines of text files, plain or compressed with gzip or xz, as a stream, without trusting their content.

The first bytes determine the format of a file, not its name. Only \\n ends a line (and \\r\\n, whose \\r is
dropped). Other characters that Unicode counts as line ends are text: splitting at them would shift one side
of a pair against the other.

A line that is not UTF-8 is returned as BAD and a line longer than the limit as LONG, so that the lines after
it keep their numbers. No more of a line than the limit is ever in memory. A file that decompresses to an
implausible size is refused.
"""

from __future__ import annotations

import contextlib
import lzma
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from regard.errors import DataError

MARK = "\udcff"  # starts a line that could not be read: a lone surrogate, which no decoded text contains
BAD, LONG = f"{MARK} bad UTF-8", f"{MARK} too long"
MAX_CHARACTERS = 100_000  # of a line
# Decompressed size over compressed size. Text has 3 to 10; gzip can reach 1032, and xz far more.
MAX_EXPANSION = 300
ALWAYS_ALLOWED = 64 << 20  # bytes of decompressed text, however small the file
BLOCK = 1 << 20
XZ_MEMORY = 1 << 29  # memory limit of xz; `xz -9` needs 65 MiB
_OTHER_FORMATS = {b"PK\x03\x04": "a zip archive", b"BZh": "a bzip2 file", b"\x28\xb5\x2f\xfd": "a zstd file"}


def lines(
    path: Path,
    *,
    max_characters: int = MAX_CHARACTERS,
    advance: Callable[[int], None] = lambda n: None,
    invalid: Callable[[bytes], str] = lambda line: BAD,
) -> Iterator[list[str]]:
    """Yield blocks of decoded lines without line ends; call `advance` with the number of bytes read.

    `invalid` makes the text of a line that is not UTF-8.

    Compressed files are unpacked in a thread of their own, so that the two sides of a pair are unpacked at
    the same time.
    """
    return _decoded(unpacked(path, advance=advance), max_characters, invalid)


def unpacked(path: Path, *, advance: Callable[[int], None] = lambda n: None) -> Iterator[bytes]:
    """Yield the bytes of a file in blocks, decompressed if necessary."""
    check_file(path)
    with path.open("rb") as file:
        start = file.read(6)
    check_utf16(str(path), start)
    for magic, description in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise DataError(f"{path} is {description}; unpack it, or pack it with gzip or xz")
    if start.startswith(b"\x1f\x8b"):
        return _prefetched(_unpacked(path, _Gzip, advance))
    if start == b"\xfd7zXZ\x00":
        return _prefetched(_unpacked(path, _Xz, advance))
    return _plain(path, advance)


def check_utf16(name: str, start: bytes) -> None:
    """Raise a DataError if the first bytes of a file or stream are those of UTF-16."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{name} is UTF-16, not UTF-8; convert it with: iconv -f UTF-16 -t UTF-8")


def is_unreadable(text: str) -> bool:
    """True for a line that is BAD or LONG, and for a missing column or field."""
    return text[:1] == MARK


def check_file(path: Path) -> None:
    """Raise a DataError unless there is a readable, non-empty file of that name."""
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder; name a file in it")
        if not path.exists():
            raise DataError(f"there is no file {path}; check the name")
        if not path.is_file():
            raise DataError(
                f"{path} is not a regular file and cannot be read twice; copy its content to a file first"
            )
        with path.open("rb") as file:
            if not file.read(1):
                raise DataError(f"{path} is empty; give a file with text")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def suffix(path: Path) -> str:
    """The extension before .gz or .xz: `en` of train.en.gz."""
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    return Path(name).suffix[1:]


def _plain(path: Path, advance: Callable[[int], None]) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                advance(len(block))
                yield block
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


class _Gzip:
    """One member of a gzip file, decompressed in bounded steps."""

    def __init__(self) -> None:
        self._inner, self._buffer = zlib.decompressobj(zlib.MAX_WBITS | 16), b""

    def step(self, data: bytes) -> bytes:
        unpacked = self._inner.decompress(self._buffer + data, BLOCK)
        self._buffer = self._inner.unconsumed_tail
        return unpacked

    @property
    def ended(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._buffer

    @property
    def rest(self) -> bytes:
        return self._inner.unused_data


class _Xz:
    """One stream of an xz file, decompressed in bounded steps with bounded memory."""

    def __init__(self) -> None:
        self._inner = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY)

    def step(self, data: bytes) -> bytes:
        return self._inner.decompress(data, BLOCK)

    @property
    def ended(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return self._inner.needs_input

    @property
    def rest(self) -> bytes:
        return self._inner.unused_data


def _unpacked(path: Path, kind: type[_Gzip] | type[_Xz], advance: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the content of a compressed file in blocks; several members are concatenated."""
    read = written = 0
    try:
        with path.open("rb") as file:
            inner, data = kind(), _more(file, advance)
            read += len(data)
            while True:
                block = inner.step(data)
                written += len(block)
                if written > ALWAYS_ALLOWED and written > MAX_EXPANSION * read:
                    raise DataError(
                        f"{path} unpacks to more than {MAX_EXPANSION} times its size, which text does not; "
                        "unpack it yourself if you trust it"
                    )
                if block:
                    yield block
                data = b""
                if inner.ended:
                    # Zeros may pad the last block.
                    data = inner.rest.lstrip(b"\0") or _more(file, advance).lstrip(b"\0")
                    if not data:
                        return
                    inner = kind()
                elif inner.needs_input and not block:
                    if not (data := _more(file, advance)):
                        raise DataError(
                            f"{path} ends in the middle of its compressed data; fetch or pack it again"
                        )
                    read += len(data)
    except (zlib.error, lzma.LZMAError) as error:
        raise DataError(
            f"{path} is damaged and cannot be unpacked ({error}); fetch or pack it again"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def _more(file: BinaryIO, advance: Callable[[int], None]) -> bytes:
    data = file.read(BLOCK // 4)
    advance(len(data))
    return data


def _prefetched(blocks: Iterator[bytes], max_blocks: int = 4) -> Iterator[bytes]:
    """Prefetch up to `max_blocks` blocks in a thread; decompression releases the GIL."""
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(max_blocks)
    stop = threading.Event()

    def put(item: bytes | BaseException | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return

    def work() -> None:
        try:
            for block in blocks:
                put(block)
                if stop.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, name="regard-unpack", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def _decoded(
    blocks: Iterator[bytes], max_characters: int, invalid: Callable[[bytes], str]
) -> Iterator[list[str]]:
    """Split blocks of bytes into decoded lines; LONG replaces a line that is longer than the limit."""
    tail, skipping, first = b"", False, True
    widest = 4 * max_characters + 2  # bytes of a line: 4 per character in UTF-8, and \r\n
    for block in blocks:
        if first:
            block, first = block.removeprefix(b"\xef\xbb\xbf"), False
        cut = block.rfind(b"\n")
        if cut < 0:
            tail = b"" if skipping else tail + block
            if len(tail) > widest:
                tail, skipping = b"", True
            continue
        complete, incomplete = block[:cut], block[cut + 1 :]
        if skipping:
            end = complete.find(b"\n")
            decoded = [LONG] + ([] if end < 0 else _lines(complete[end + 1 :], max_characters, invalid))
        else:
            decoded = _lines(tail + complete, max_characters, invalid)
        tail, skipping = (incomplete, False) if len(incomplete) <= widest else (b"", True)
        yield decoded
    if skipping:
        yield [LONG]
    elif tail:
        yield _lines(tail, max_characters, invalid)


def _lines(data: bytes, max_characters: int, invalid: Callable[[bytes], str]) -> list[str]:
    try:
        text = data.decode("utf-8")
        decoded = (text.replace("\r\n", "\n").removesuffix("\r") if "\r" in text else text).split("\n")
    except UnicodeDecodeError:
        decoded = [_line(line, invalid) for line in data.split(b"\n")]
    return (
        decoded
        if len(data) <= max_characters or max(map(len, decoded)) <= max_characters
        else [line if len(line) <= max_characters else LONG for line in decoded]
    )


def _line(data: bytes, invalid: Callable[[bytes], str]) -> str:
    data = data.removesuffix(b"\r")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return invalid(data)


def aligned_lines(path: Path) -> list[str]:
    """Return all lines of a file; a line that is not text is an error, since lines must stay aligned."""
    content = [line for block in lines(path) for line in block]
    for number, line in enumerate(content, 1):
        if line == BAD or "\0" in line:
            raise DataError(f"line {number} of {path} is not UTF-8 text; is it a binary file?")
        if line == LONG:
            raise DataError(f"line {number} of {path} is too long for a sentence; give one sentence per line")
    return content
