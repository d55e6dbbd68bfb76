"""Output file formats: plain, .gz, .xz, .npz and .npy. Packed chunks, one after the other, make a file."""

from __future__ import annotations

import gzip
import io
import lzma
import zipfile
from pathlib import Path
from typing import Protocol

import numpy as np

from regard.files.atomic import replace_file


class Packing(Protocol):
    """How the bytes of a chunk are stored."""

    def pack(self, data: bytes) -> bytes: ...

    def finish(self, part: Path, path: Path) -> None:
        """Turn the finished part file into the output file."""
        ...


class Plain:
    """Bytes as they are."""

    def pack(self, data: bytes) -> bytes:
        return data

    def finish(self, part: Path, path: Path) -> None:
        replace_file(part, path)


class Gzip(Plain):
    """One gzip member per chunk, without a date: equal text gives equal bytes."""

    def pack(self, data: bytes) -> bytes:
        return gzip.compress(data, 6, mtime=0)


class Xz(Plain):
    """One xz stream per chunk."""

    def pack(self, data: bytes) -> bytes:
        return lzma.compress(data, preset=6)


class Zip(Plain):
    """Chunks are zip files (as .npz), each after its length; at the end their members become one zip file."""

    def pack(self, data: bytes) -> bytes:
        return len(data).to_bytes(8, "big") + data

    def finish(self, part: Path, path: Path) -> None:
        temporary = path.with_name(path.name + ".whole")
        with part.open("rb") as file, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            while size := int.from_bytes(file.read(8), "big"):
                with zipfile.ZipFile(io.BytesIO(file.read(size))) as chunk:
                    for name in chunk.namelist():
                        archive.writestr(zipfile.ZipInfo(name), chunk.read(name))
        # The part stays until the journal is removed: it cannot be recovered from the zip file.
        replace_file(temporary, path)


class Npy(Plain):
    """A NumPy header for 0 rows, then rows; at the end the header gets the number of rows."""

    def finish(self, part: Path, path: Path) -> None:
        with part.open("r+b") as file:
            np.lib.format.read_magic(file)
            (_, width), _, dtype = np.lib.format.read_array_header_1_0(file)
            rows = (part.stat().st_size - file.tell()) // (width * dtype.itemsize)
            file.seek(0)
            header = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": (rows, width),
            }
            np.lib.format.write_array_header_1_0(file, header)
        replace_file(part, path)


def packing(path: Path) -> Packing:
    """Return the packing for the suffix of a path."""
    return {".gz": Gzip, ".xz": Xz, ".npz": Zip, ".npy": Npy}.get(path.suffix, Plain)()
