"""Files that are either whole or absent: atomic writes, a cache folder, a lock, arrays that grow on disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError


def cache_folder() -> Path:
    """Where prepared data is kept: REGARD_CACHE, or ~/.cache/regard."""
    given = os.environ.get("REGARD_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "regard"


def file_sha256(path: Path, advance: Callable[[int], None] = lambda n: None) -> str:
    """SHA-256 of the bytes of a file as they lie on the disk, compressed or not."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is never seen half written, not even after a loss of power; text as UTF-8."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)  # mkstemp's files are for their owner alone
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _about_disk(error, path.parent) from None


def build_folder(final: Path, whole: Callable[[Path], bool], build: Callable[[Path], None]) -> None:
    """Make sure that `final` is a whole folder: keep one that is, or build one beside it and rename it into place.

    Of several processes that want the same folder one builds while the others wait; one that dies leaves the work to the next.
    Where the file system has no locks they build at once and the first to finish wins, with the same content.
    """
    if whole(final):
        return
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final.with_name(final.name + ".lock")) as alone:
            if whole(final):
                return
            if alone:  # what a killed process left behind; without a lock it could be at work still
                for left in final.parent.glob(f"{final.name}.tmp-*"):
                    shutil.rmtree(left, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(prefix=f"{final.name}.tmp-", dir=final.parent))
            try:
                build(temporary)
                _into_place(temporary, final, whole)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise _about_disk(error, final.parent) from None


def _into_place(temporary: Path, final: Path, whole: Callable[[Path], bool]) -> None:
    os.chmod(temporary, 0o755)
    for _ in range(2):
        with contextlib.suppress(OSError):
            os.rename(temporary, final)
        if whole(final):
            return
        shutil.rmtree(final, ignore_errors=True)  # damaged, or of an older version
    os.rename(temporary, final)  # says why it cannot be


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a lock that ends with the process, however it ends. Gives False where the system has none."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield False
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # some network file systems
            yield False
            return
        yield True


def _about_disk(error: OSError, folder: Path) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"the disk of {folder} is full; free some space, or set REGARD_CACHE to a folder on another disk"
        )
    return DataError(
        f"{folder} cannot be written: {error.strerror or error}; set REGARD_CACHE to a folder of yours"
    )


class GrowingArray:
    """A one-dimensional .npy file that is written piece by piece and never lies in memory."""

    def __init__(self, path: Path, dtype: type[np.generic]) -> None:
        self.dtype, self.length = np.dtype(dtype), 0
        self._file: BinaryIO = path.open("wb")
        self._header()

    def _header(self) -> None:
        # The header's room does not depend on the length, so that it can be written again when the length is known.
        shape = (self.length,)
        np.lib.format.write_array_header_1_0(
            self._file,
            {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape},
        )

    def append(self, values: NDArray[np.generic]) -> None:
        self.length += len(values)
        self._file.write(np.ascontiguousarray(values, self.dtype).data)

    def close(self) -> None:
        if not self._file.closed:
            self._file.seek(0)
            self._header()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> GrowingArray:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def read_array(path: Path) -> NDArray[np.generic]:
    """A memory-mapped .npy array; an empty one is read, since nothing cannot be mapped."""
    found = np.load(path, mmap_mode=None if path.stat().st_size <= 128 else "r", allow_pickle=False)
    return found if not isinstance(found, np.memmap) else found.view(np.ndarray)
