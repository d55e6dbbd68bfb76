"""Training rows whose targets are a teacher's translations (sequence-level distillation, Kim & Rush 2016).

A folder of the cache holds the translations of all distinct sources:

pairs.jsonl   one object per line, {"source": …, "translation": …}
hashes.npy    64-bit hashes of the sources, sorted
starts.npy    the byte at which the line of each hash begins
meta.json     counts; written last, so a folder that has it is complete
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.readers import Advance, Block, Rows, ignore
from regard.files.atomic import write_file

META, PAIRS = "meta.json", "pairs.jsonl"


def text_hashes(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each text, the same on every machine."""
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(b"".join(digests), "<u8")


class TeacherTranslations:
    """The translations of a teacher, looked up by source. Texts stay on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: dict[str, int] = json.loads((folder / META).read_text(encoding="utf-8"))
        self._hashes = np.load(folder / "hashes.npy", mmap_mode="r")
        self._starts = np.load(folder / "starts.npy", mmap_mode="r")

    @property
    def file(self) -> Path:
        return self.folder / PAIRS

    @cached_property
    def _pairs(self) -> mmap.mmap:
        with self.file.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def lookup(self, sources: Sequence[str]) -> list[str | None]:
        """Return the translation of each source; None if the teacher has none."""
        hashes = text_hashes(sources)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        known = self._hashes[places] == hashes
        return [
            self._read(source, int(self._starts[place])) if is_known else None
            for source, place, is_known in zip(sources, places, known, strict=True)
        ]

    def _read(self, source: str, start: int) -> str | None:
        self._pairs.seek(start)
        pair = json.loads(self._pairs.readline())
        return pair["translation"] if pair["source"] == source else None  # else two sources share a hash


def write_translations(folder: Path, pairs: Iterable[tuple[str, str]], counts: dict[str, int]) -> None:
    """Write pairs of source and translation and their index; `counts`, as they are at the end, come last."""
    hashes, starts, start = array("Q"), array("q"), 0
    with (folder / PAIRS).open("wb") as file:
        for source, translation in pairs:
            pair = {"source": source, "translation": translation}
            line = json.dumps(pair, ensure_ascii=False).encode() + b"\n"
            hashes.append(int(text_hashes([source])[0]))
            starts.append(start)
            start += file.write(line)
        file.flush()
        os.fsync(file.fileno())
    order = np.argsort(np.asarray(hashes, np.uint64), kind="stable")
    np.save(folder / "hashes.npy", np.asarray(hashes, np.uint64)[order])
    np.save(folder / "starts.npy", np.asarray(starts, np.int64)[order])
    write_file(folder / META, json.dumps(counts))


@dataclass(frozen=True)
class DistilledRows(Rows):
    """The rows of another reader with the teacher's translations as targets.

    Rows whose source has no translation are left out. With `both`, the original rows follow, block by block.
    `limit` is the number of rows of the other reader that are used.
    """

    rows: Rows
    translations: TeacherTranslations
    both: bool = False
    limit: int | None = None
    paired = True

    @property
    def files(self) -> tuple[Path, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (*self.rows.files, self.translations.file)

    def layout(self) -> dict[str, Any]:
        return {"distilled": self.rows.layout(), "both": self.both, "limit": self.limit}

    def notes(self) -> list[str]:
        return self.rows.notes()

    def place(self, row: int, column: int) -> str:
        return f"row {row + 1} of the distilled {self.rows.files[0]}"

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        left = self.limit
        for block in self.rows.blocks(advance):
            if left is not None:
                block = tuple(column[:left] for column in block)
                left -= len(block[0])
            translations = self.translations.lookup(block[0])
            pairs = [
                (source, text)
                for source, text in zip(block[0], translations, strict=True)
                if text is not None
            ]
            yield [source for source, _ in pairs], [text for _, text in pairs]
            if self.both:
                yield block
            if left == 0:
                return
