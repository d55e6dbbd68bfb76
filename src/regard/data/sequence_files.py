"""Sequences of numbers from files: frames of sound, readings of sensors, rows of an image.

A sequence is a matrix X of T frames with M channels. A reference names it: `a.npy` (an array T × M, or T
numbers for one channel), `a.csv` or `a.tsv` (a line per frame, with or without a header), or `all.npy#7`,
row 7 of an array N × T × M.
"""

from __future__ import annotations

import csv
import os
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.arguments import quoted
from regard.data.text_files import check_file
from regard.errors import DataError

Frames = NDArray[np.float32]
TABLES = {".csv": ",", ".tsv": "\t"}


def read_sequence(reference: str | os.PathLike[str]) -> Frames:
    """The frames (T, M) of a file, or of one row of an array."""
    path, row = split_reference(os.fspath(reference))
    check_file(path)
    if path.suffix == ".npy":
        return as_frames(_row_of_array(path, row), str(reference))
    if path.suffix not in TABLES:
        raise DataError(f"{path} is not a sequence of numbers; give a .npy, .csv or .tsv file")
    if row is not None:
        raise DataError(f"{reference} names a row of a table, and a table is one sequence; leave out #{row}")
    return as_frames(_table(path), str(reference))


def split_reference(reference: str) -> tuple[Path, int | None]:
    """`all.npy#7` → the path, and 7; None if it names no row."""
    path, mark, row = reference.rpartition("#")
    if mark and row.isdecimal() and path.endswith(".npy"):
        return Path(path), int(row)
    return Path(reference), None


def is_sequence(value: Any) -> bool:
    """True for a path, an array, or a list with one of them: inputs that only models of number sequences
    accept.
    """
    items = value if isinstance(value, list | tuple) else [value]
    return any(
        isinstance(item, os.PathLike) or isinstance(getattr(item, "ndim", None), int) for item in items
    )


def is_sequence_file(reference: str) -> bool:
    """True for an array and a table of numbers; False for other files, such as a table of file names."""
    path, _ = split_reference(reference)
    if path.suffix not in TABLES:
        return path.suffix == ".npy"
    check_file(path)
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = list(islice(csv.reader(file, delimiter=TABLES[path.suffix]), 2))  # the first may be a header
    return bool(lines[-1:] and lines[-1] and _is_number(lines[-1][0]))


def as_frames(values: Any, name: str) -> Frames:
    """Check an array of numbers and return it as float32 frames (T, M); `name` is for messages."""
    array = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name} holds {array.dtype} instead of numbers; give an array of frames × channels")
    if array.ndim == 3:
        raise DataError(
            f"{name} has shape {array.shape}, so it holds {len(array)} sequences; name one, as in {name}#0"
        )
    if array.ndim not in (1, 2):
        raise DataError(f"{name} has shape {array.shape}; a sequence has the shape (frames, channels)")
    if not array.size:
        raise DataError(f"{name} has no frames, its shape is {array.shape}; leave it out")
    frames = array.astype(np.float32).reshape(len(array), -1)
    if not np.isfinite(frames).all():
        frame, channel = np.argwhere(~np.isfinite(frames))[0]
        raise DataError(
            f"{name} has {array.reshape(frames.shape)[frame, channel]} at frame {frame}, channel {channel}; "
            "replace it by a number, or leave the sequence out"
        )
    return frames


def sequence_count(path: Path) -> int | None:
    """The number of sequences in an array N × T × M; None for a file with one sequence."""
    if path.suffix != ".npy":
        return None
    check_file(path)
    array = _array(path)
    return len(array) if array.ndim == 3 else None


def describe_array(path: Path) -> str:
    """The sequences of a .npy file in one line."""
    count = sequence_count(path)
    frames = read_sequence(path if count is None else f"{path}#0")
    sequences = "1 sequence" if count in (None, 1) else f"{count:,} sequences"
    return f"{path}: {sequences} of {len(frames):,} frames with {frames.shape[1]:,} channels"


def _row_of_array(path: Path, row: int | None) -> NDArray[Any]:
    array = _array(path)
    if row is None:
        return array
    if array.ndim != 3:
        raise DataError(f"{path} has shape {array.shape}, which is one sequence; leave out #{row}")
    if row >= len(array):
        raise DataError(f"{path} has {len(array)} sequences, numbered from 0, and #{row} is not one of them")
    return array[row]


def _array(path: Path) -> NDArray[Any]:
    return _mapped(str(path), path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _mapped(path: str, modified: int) -> NDArray[Any]:
    """The array of a .npy file, not read into memory.

    `modified` is part of the cache key, so a changed file is loaded again.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        reason = (str(error).splitlines() or ["unreadable"])[0]
        raise DataError(f"{path} is not an array of numbers ({reason}); write it with numpy.save") from None


def _table(path: Path) -> list[list[float]]:
    """The numbers of a table; its first line may name the channels."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = [
            (i, line) for i, line in enumerate(csv.reader(file, delimiter=TABLES[path.suffix]), 1) if line
        ]
    if lines and not all(map(_is_number, lines[0][1])):
        lines = lines[1:]
    frames: list[list[float]] = []
    for number, cells in lines:
        if len(cells) != len(lines[0][1]):
            raise DataError(
                f"{path} line {number} has {len(cells)} numbers, and line {lines[0][0]} has "
                f"{len(lines[0][1])}; every frame has the same channels"
            )
        for cell in cells:
            if not _is_number(cell):
                raise DataError(f"{path} line {number}: {quoted(cell)} is not a number; correct it")
        frames.append([float(cell) for cell in cells])
    return frames


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
