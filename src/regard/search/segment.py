"""An immutable, memory-mapped segment of an index: documents with their vectors and postings."""

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
    """`count` documents, numbered from `first`."""

    def __init__(self, folder: Path, first: int, count: int, width: int) -> None:
        self.folder, self.first, self.count, self.width = folder, first, count, width

    @staticmethod
    def write(folder: Path, documents: Sequence[Document], vectors: NDArray[np.float32]) -> None:
        """Write a segment into an empty folder."""
        np.save(folder / "vectors.npy", np.ascontiguousarray(vectors, np.float32))
        lines = [
            json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            for document in documents
        ]
        (folder / "documents.jsonl").write_bytes(b"".join(lines))
        np.save(folder / "offsets.npy", np.cumsum([0, *map(len, lines)]))
        with track(len(documents), "counting words", "documents") as bar:
            postings = Postings.build((document.text for document in documents), bar.advance)
        (folder / "words").mkdir()
        postings.save(folder / "words")

    @cached_property
    def vectors(self) -> NDArray[np.float32]:
        vectors = self._array("vectors.npy")
        if vectors.shape != (self.count, self.width) or vectors.dtype != np.float32:
            raise FolderError(
                f"{self.folder / 'vectors.npy'} has vectors of shape {vectors.shape} ({vectors.dtype}), "
                f"not {(self.count, self.width)}; it belongs to another index, so build this one again"
            )
        return vectors

    @cached_property
    def postings(self) -> Postings:
        try:
            postings = Postings.load(self.folder / "words")
            postings.check(self.count)
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(self.folder / "words", error) from None
        return postings

    def document(self, number: int) -> Document:
        """Read one document by its number in the index."""
        offsets = self._offsets
        start, stop = int(offsets[number - self.first]), int(offsets[number - self.first + 1])
        with self._path.open("rb") as file:
            file.seek(start)
            return self._parse(file.read(stop - start))

    def documents(self) -> Iterator[Document]:
        """Read all documents, in order."""
        with self._path.open("rb") as file:
            yield from map(self._parse, file)

    @cached_property
    def _path(self) -> Path:
        path = self.folder / "documents.jsonl"
        if not path.is_file():
            raise FolderError(f"{path} is missing; the index is incomplete, so copy it or build it again")
        return path

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        offsets = self._array("offsets.npy")
        if (
            offsets.shape != (self.count + 1,)
            or offsets.dtype != np.int64
            or offsets[0] != 0
            or (np.diff(offsets) < 0).any()
        ):
            raise self._damaged(
                self.folder / "offsets.npy",
                ValueError("it is not an ascending list of offsets into documents.jsonl"),
            )
        return offsets

    def _array(self, name: str) -> NDArray[Any]:
        try:
            return np.load(self.folder / name, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise self._damaged(self.folder / name, error) from None

    def _parse(self, line: bytes) -> Document:
        try:
            document = Document(*json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(self._path, error) from None
        if not isinstance(document.id, str) or not isinstance(document.text, str):
            raise self._damaged(self._path, ValueError("a document needs an id and a text, both strings"))
        return document

    @staticmethod
    def _damaged(path: Path, error: BaseException) -> FolderError:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return FolderError(
            f"{path} cannot be read ({reason}); it is missing or damaged, so build the index again"
        )
