"""Where translations go: to standard output, or to files that a job can be stopped over and go on with, at any moment.

A file grows as FILE.part. After every chunk it is on the disk, and a line in FILE.progress says how many lines of the source and
how many bytes of every file belong together. What a killed process wrote beyond that is cut off when the job goes on, so the
result is byte for byte that of a job that was never stopped. FILE itself appears once it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import lzma
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from regard.errors import DataError, OptionError
from regard.files.lock import lock_file


class Packing(Protocol):
    """How the bytes of a chunk are stored; packed chunks, one after the other, are a whole file."""

    def pack(self, data: bytes) -> bytes: ...

    def finish(self, part: Path, path: Path) -> None:
        """Make the file of its part."""
        ...


class Plain:
    """Bytes as they are."""

    def pack(self, data: bytes) -> bytes:
        return data

    def finish(self, part: Path, path: Path) -> None:
        os.replace(part, path)


class Gzip(Plain):
    """Every chunk is a member of its own; without a date in it, the same text is the same bytes."""

    def pack(self, data: bytes) -> bytes:
        return gzip.compress(data, 6, mtime=0)


class Xz(Plain):
    """Every chunk is a stream of its own."""

    def pack(self, data: bytes) -> bytes:
        return lzma.compress(data, preset=6)


class Zip(Plain):
    """Chunks are zip files (as .npz are), each behind its length; in the end their members become one zip file."""

    def pack(self, data: bytes) -> bytes:
        return len(data).to_bytes(8, "big") + data

    def finish(self, part: Path, path: Path) -> None:
        whole = path.with_name(path.name + ".whole")
        with part.open("rb") as file, zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as joined:
            while size := int.from_bytes(file.read(8), "big"):
                with zipfile.ZipFile(io.BytesIO(file.read(size))) as chunk:
                    for name in chunk.namelist():
                        joined.writestr(zipfile.ZipInfo(name), chunk.read(name))
        os.replace(
            whole, path
        )  # the part stays until the journal is gone: a zip file cannot be taken apart again


class Npy(Plain):
    """A NumPy header for no rows and then rows; in the end the header gets the number of rows."""

    def finish(self, part: Path, path: Path) -> None:
        with part.open("r+b") as file:
            np.lib.format.read_magic(file)
            (_, width), _, dtype = np.lib.format.read_array_header_1_0(file)
            rows = (part.stat().st_size - file.tell()) // (width * dtype.itemsize)
            file.seek(0)
            facts = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": (rows, width),
            }
            np.lib.format.write_array_header_1_0(file, facts)
            os.fsync(file.fileno())
        os.replace(part, path)


def packing(path: Path) -> Packing:
    """By the end of a name."""
    return {".gz": Gzip, ".xz": Xz, ".npz": Zip, ".npy": Npy}.get(path.suffix, Plain)()


@dataclass
class Stream:
    """A pipe, a terminal or a device: what was written is gone."""

    handle: int
    name: str
    packing: Packing = field(default_factory=Plain)

    def write(self, data: bytes) -> None:
        _write(self.handle, data)


@dataclass
class File:
    """A file that grows beside its final place."""

    path: Path
    packing: Packing
    bytes: int = 0

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    def open(self, size: int) -> None:
        """Go on after so many bytes."""
        self._file: BinaryIO = self.part.open("r+b" if size else "wb", buffering=0)
        self._file.truncate(size)
        self._file.seek(size)
        self.bytes = size

    def write(self, data: bytes) -> None:
        _write(self._file.fileno(), data)
        self.bytes += len(data)

    def sync(self) -> None:
        os.fsync(self._file.fileno())


def output(path: Path) -> Stream | File:
    """What a path names; `-` is standard output, and devices and pipes are written as they are."""
    if str(path) == "-":
        return Stream(1, "standard output")
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise OptionError(f"{path} is a folder; name a file in it")
        with telling(str(path)):
            return Stream(os.open(path, os.O_WRONLY), str(path), packing(path))
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written, its folder is not there; make it first")
    return File(path, packing(path))


class Outputs:
    """The outputs of a job. When the first is a file the job can go on: `lines` and `digest` say after what."""

    def __init__(
        self, outputs: Sequence[Stream | File], about: dict[str, Any], restart: bool = False
    ) -> None:
        self.outputs, self.lines, self.digest = list(outputs), 0, ""
        self._files = [each for each in outputs if isinstance(each, File)]
        first = outputs[0]
        self._journal: _Journal | None = None
        with telling(first.name):
            if isinstance(first, File):
                self._journal = _Journal(first.path.with_name(first.path.name + ".progress"), restart)
                self._journal.begin(about, self._files, restart)
            last = self._journal.last if self._journal else None
            sizes = last["bytes"] if last else [0] * len(self._files)
            if last:
                self.lines, self.digest = last["lines"], last["digest"]
            for file, size in zip(self._files, sizes, strict=True):
                file.open(size)

    @property
    def resumable(self) -> bool:
        return self._journal is not None

    def commit(self, data: Sequence[bytes], lines: int, digest: str) -> None:
        """Write a chunk to each output; when this returns it is on the disk."""
        again = "; the same command goes on from there" if self.resumable else ""
        for each, packed in zip(self.outputs, data, strict=True):
            with telling(each.name, f"{self.lines:,} lines are written{again}"):
                each.write(packed)
        with telling(self.outputs[0].name, f"{self.lines:,} lines are written{again}"):
            if self._journal is not None:
                for file in self._files:
                    file.sync()
                self._journal.add(
                    {"lines": lines, "bytes": [file.bytes for file in self._files], "digest": digest}
                )
        self.lines = lines

    def finish(self) -> None:
        """Everything is written: put the files into their places."""
        with telling(self.outputs[0].name, "all lines are written; the same command finishes the work"):
            if self._journal is not None:
                self._journal.add({"finished": True})
            for file in self._files:
                file.packing.finish(file.part, file.path)
            if self._journal is not None:
                self._journal.remove()
            for file in self._files:
                file.part.unlink(missing_ok=True)


class _Journal:
    """A file to which lines are only ever added. A last line that is cut short does not count."""

    def __init__(self, path: Path, restart: bool) -> None:
        self.path, self.last = path, None
        self._file = path.open("a+b", buffering=0)
        lock(self._file, path)
        self._file.seek(0)
        text = self._file.read()
        whole = text.rfind(b"\n") + 1
        self._file.truncate(whole)
        try:
            found = [json.loads(line) for line in text[:whole].splitlines()]
            self._header: dict[str, Any] | None = found[0]["job"] if found else None
            self._steps: list[dict[str, Any]] = found[1:]
        except (ValueError, KeyError, TypeError, RecursionError):
            if not restart:
                raise DataError(
                    f"{path} was not written by this command, or is damaged; remove it, or add --restart"
                ) from None
            self._header, self._steps = None, []

    def begin(self, about: dict[str, Any], files: list[File], restart: bool) -> None:
        """Start over, or go on where the same job has stopped; another job is refused."""
        if restart:
            self._header = None
            self._file.truncate(0)
            for file in files:
                file.part.unlink(missing_ok=True)
        if self._header is None:
            stray = next((file.part for file in files if file.part.exists()), None)
            if stray is not None:
                self.remove()
                raise DataError(
                    f"there is a file {stray} that this command did not begin; remove it, or add --restart"
                )
            self.add({"job": about})
            return
        self._same(about)
        self.last = next((step for step in reversed(self._steps) if "lines" in step), None)
        if self.last is not None:
            finished = "finished" in self._steps[-1]
            for file, size in zip(files, self.last["bytes"], strict=True):
                _back(file, size, finished)

    def add(self, entry: dict[str, Any]) -> None:
        _write(self._file.fileno(), json.dumps(entry).encode() + b"\n")
        os.fsync(self._file.fileno())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _same(self, about: dict[str, Any]) -> None:
        before = self._header or {}
        for key in [*about, *before]:
            if before.get(key) != about.get(key):
                shown = (
                    ""
                    if key in ("model", "version")
                    else f" ({_shown(before.get(key))}, now {_shown(about.get(key))})"
                )
                raise OptionError(
                    f"{self.path.name.removesuffix('.progress')} was begun with another {key}{shown}; "
                    "go on with the command that began it, or start over with --restart"
                )


def _back(file: File, size: int, finished: bool) -> None:
    """A job that was killed while it put its files into place goes on as if it had not begun to."""
    if finished and not file.part.exists() and file.path.is_file() and file.path.stat().st_size == size:
        os.replace(file.path, file.part)
    if size and (not file.part.exists() or file.part.stat().st_size < size):
        raise DataError(
            f"{file.part} is not as long as its journal says; something has changed it, so start over with --restart"
        )


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def lock(file: BinaryIO, path: Path) -> None:
    """Refuse an output that another process is writing."""
    if lock_file(file, wait=False) is False:
        raise DataError(
            f"another process is writing {path.name.removesuffix('.progress')}; wait for it, or stop it"
        )


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


@contextlib.contextmanager
def telling(name: str, state: str = "") -> Iterator[None]:
    """A disk that is full or a file that cannot be written is one sentence; a closed pipe is passed on."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        after = f"; {state}" if state else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"the disk of {name} is full{after or '; free some space'}") from None
        raise DataError(f"{name} cannot be written: {error.strerror or error}{after}") from None
