"""Attention files: JSON lines, or a NumPy archive with full precision.

A file is written under a temporary name in the same folder and renamed when it is complete. Arrays are added
to the archive one by one, so only one text is in memory.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from regard.decoding.attention_weights import AttentionMaps
from regard.errors import OptionError
from regard.files.atomic import atomic_path

DIGITS = 6


class AttentionWriter(Protocol):
    """Writes the attention maps of one hypothesis at a time.

    Lines and hypotheses are counted from 0; hypothesis 0 of a line is the best.
    """

    def add(
        self, line: int, hypothesis: int, attention: AttentionMaps, score: float | None = None
    ) -> None: ...


class AttentionLines:
    """One JSON object per line: tokens of source and target, score, and weights rounded to six digits."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def add(self, line: int, hypothesis: int, attention: AttentionMaps, score: float | None = None) -> None:
        record = {
            "line": line,
            "hypothesis": hypothesis,
            "score": score,
            "source": attention.source,
            "target": attention.target,
            "inputs": attention.inputs,
            "weights": {name: w.double().round(decimals=DIGITS).tolist() for name, w in attention.items()},
        }
        self._stream.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")


class AttentionArchive:
    """Arrays LINE/HYPOTHESIS/NAME, (heads, rows, columns), and LINE/HYPOTHESIS/text with the rest as JSON."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1)

    def add(self, line: int, hypothesis: int, attention: AttentionMaps, score: float | None = None) -> None:
        about = {
            "score": score,
            "source": attention.source,
            "target": attention.target,
            "inputs": attention.inputs,
        }
        self._put(f"{line}/{hypothesis}/text", np.array(json.dumps(about, ensure_ascii=False)))
        for name, w in attention.items():
            self._put(f"{line}/{hypothesis}/{name}", w.numpy())

    def _put(self, name: str, array: NDArray[np.generic]) -> None:
        with self._zip.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, array, allow_pickle=False)

    def close(self) -> None:
        """Write the table of contents, which completes the archive."""
        self._zip.close()


def check_attention_path(path: str | Path) -> Path:
    """Check that attention can be written to a path; to be called before any work."""
    path = Path(path)
    if path.suffix not in (".jsonl", ".npz"):
        raise OptionError(
            f"attention is written to a file that ends in .jsonl or .npz, got {path.name}; rename it"
        )
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written, its folder does not exist; create it first")
    return path


@contextmanager
def save_attention(path: str | Path) -> Iterator[AttentionWriter]:
    """Write attention to a .npz or .jsonl file.

    >>> translation = regard.translate("I see.", "tatoeba-en-de-bahdanau", attention=True)
    >>> with save_attention("out.npz") as file:
    ...     file.add(0, 0, translation.hypotheses[0].attention)
    """
    path = check_attention_path(path)
    with (
        atomic_path(path, "free some space or name another file") as temporary,
        temporary.open("wb") as stream,
    ):
        if path.suffix == ".npz":
            archive = AttentionArchive(stream)
            try:
                yield archive
            finally:
                archive.close()  # before the stream is closed
        else:
            with os.fdopen(os.dup(stream.fileno()), "w", encoding="utf-8", newline="\n") as text:
                yield AttentionLines(text)
