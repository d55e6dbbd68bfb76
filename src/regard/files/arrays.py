"""NumPy arrays on disk: written piece by piece, read by memory mapping."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray


class GrowingArray:
    """A one-dimensional .npy file that grows by `append`; it is never held in memory."""

    def __init__(self, path: Path, dtype: type[np.generic]) -> None:
        self.dtype, self.length = np.dtype(dtype), 0
        self._file: BinaryIO = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        # The header has the same size for every length, so it can be rewritten when the length is known.
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
            self._write_header()
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
    """Memory-map a .npy array. An empty array is loaded instead: a file without data cannot be mapped."""
    array = np.load(path, mmap_mode=None if path.stat().st_size <= 128 else "r", allow_pickle=False)
    return array if not isinstance(array, np.memmap) else array.view(np.ndarray)
