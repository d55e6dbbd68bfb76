"""A part of an index: documents that were added together, their vectors and their words. Written once, read as needed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import FolderError
from regard.files.progress import track
from regard.search.bm25 import Postings
from regard.search.documents import Document


class Segment:
    """`count` documents, numbered from `first` on."""

    def __init__(self, folder: Path, first: int, count: int, width: int) -> None:
        self.folder, self.first, self.count, self.width = folder, first, count, width

    @staticmethod
    def write(folder: Path, documents: Sequence[Document], vectors: NDArray[np.float32]) -> None:
        """Fill an empty folder."""
        np.save(folder / "vectors.npy", np.ascontiguousarray(vectors, np.float32))
        lines = [
            json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            for document in documents
        ]
        (folder / "documents.jsonl").write_bytes(b"".join(lines))
        np.save(folder / "offsets.npy", np.cumsum([0, *map(len, lines)]))
        with track(len(documents), "counting words", "documents") as bar:
            found = Postings.of((document.text for document in documents), bar.advance)
        (folder / "words").mkdir()
        found.save(folder / "words")

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        found = self._array("vectors.npy")
        if found.shape != (self.count, self.width) or found.dtype != np.float32:
            raise FolderError(
                f"{self.folder / 'vectors.npy'} holds vectors of shape {found.shape} ({found.dtype}), "
                f"not {(self.count, self.width)}; it belongs to another index, so build this one again"
            )
        return found

    @cached_property
    def postings(self) -> Postings:
        try:
            found = Postings.load(self.folder / "words")
            found.check(self.count)
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(self.folder / "words", error) from None
        return found

    def document(self, number: int) -> Document:
        """By its number in the index."""
        offsets = self._offsets
        with self._path.open("rb") as file:
            file.seek(int(offsets[number - self.first]))
            return self._parsed(
                file.read(int(offsets[number - self.first + 1] - offsets[number - self.first]))
            )

    def documents(self) -> Iterator[Document]:
        """All of them, in order."""
        with self._path.open("rb") as file:
            yield from map(self._parsed, file)

    @cached_property
    def _path(self) -> Path:
        path = self.folder / "documents.jsonl"
        if not path.is_file():
            raise FolderError(f"{path} is missing; the index is incomplete, so copy it or build it again")
        return path

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        found = self._array("offsets.npy")
        if (
            found.shape != (self.count + 1,)
            or found.dtype != np.int64
            or found[0] != 0
            or (np.diff(found) < 0).any()
        ):
            raise self._damaged(
                self.folder / "offsets.npy", ValueError("it is no rising list of places in documents.jsonl")
            )
        return found

    def _array(self, name: str) -> NDArray[Any]:
        try:
            return np.load(self.folder / name, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(self.folder / name, error) from None

    def _parsed(self, line: bytes) -> Document:
        try:
            found = Document(*json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(self._path, error) from None
        if not isinstance(found.id, str) or not isinstance(found.text, str):
            raise self._damaged(self._path, ValueError("a document is a name and a text"))
        return found

    @staticmethod
    def _damaged(path: Path, error: BaseException) -> FolderError:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return FolderError(
            f"{path} cannot be read ({reason}); it is missing or damaged, so build the index again"
        )
