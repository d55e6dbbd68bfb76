"""A search index opened for reading: documents with their embeddings and BM25 statistics.

index.json names the files of an index: immutable segments of documents ("parts"), an HNSW graph once there
are many vectors, and the numbers of removed documents. `regard.search.build_index` creates and changes it.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, FolderError, OptionError, for_shell
from regard.files.checksums import verify_listed
from regard.files.lock import lock_file
from regard.models.folder import as_path, is_file, read_json
from regard.search.bm25 import Bm25
from regard.search.documents import Document
from regard.search.exact import nearest, top_k
from regard.search.hnsw import HnswGraph
from regard.search.segment import Segment

FORMAT = 1
MANIFEST = "index.json"
Numbers = NDArray[np.int64]
Vectors = NDArray[np.float32]


class IndexInfo(NamedTuple):
    """The embedding model of an index."""

    model: str  # `minilm`, or a model folder
    fingerprint: str
    width: int


class Index:
    """A snapshot of an index at the time it was opened; reopen it to see later changes.

    Documents are numbered from 0; numbers are not reused until the index is compacted. Opening verifies
    checksums. While the index is open, a shared lock keeps writers from deleting files they have replaced; a
    later writer deletes them.
    """

    def __init__(self, folder: str | Path, *, threads: int = 0) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int) or not 0 <= threads <= 4096:
            raise OptionError(f"threads must be an integer between 0 (all cores) and 4096, got {threads!r}")
        self.folder, self.threads = as_path("folder", folder), threads
        self._lock = _SharedLock(self.folder)
        self.manifest = _read_manifest(self.folder)
        self.info = IndexInfo(**self.manifest["made"])
        for name in [
            *(entry["name"] for entry in self.manifest["parts"]),
            *([self.manifest["graph"]] if self.manifest["graph"] else []),
        ]:
            verify_listed(self.folder / name)

    def close(self) -> None:
        """Release the lock, so that writers may delete replaced files. Also happens on garbage collection."""
        self._lock.close()

    def __len__(self) -> int:
        return self.manifest["next"] - len(self.removed)

    def check(self, fingerprint: str) -> None:
        """Raise FolderError unless this is the fingerprint of the model that embedded the index."""
        if fingerprint != self.info.fingerprint:
            raise FolderError(
                f"{self.folder} was built with another model ({self.info.model}, "
                f"{self.info.fingerprint[:12]}) than this one ({fingerprint[:12]}), "
                "so vectors cannot be compared; use that model, or build the index again"
            )

    @cached_property
    def segments(self) -> list[Segment]:
        return [
            Segment(self.folder / entry["name"], entry["first"], entry["count"], self.info.width)
            for entry in self.manifest["parts"]
        ]

    @cached_property
    def removed(self) -> Numbers:
        """Numbers of removed documents, ascending."""
        return np.array(self.manifest["removed"], np.int64)

    @cached_property
    def bm25(self) -> Bm25:
        return Bm25([part.postings for part in self.segments], self.removed)

    @cached_property
    def graph(self) -> HnswGraph | None:
        name = self.manifest["graph"]
        return (
            None
            if name is None
            else HnswGraph.load(self.folder / name / "graph.usearch", self.info.width, threads=self.threads)
        )

    def document(self, number: int) -> Document:
        for part in self.segments:
            if part.first <= number < part.first + part.count:
                return part.document(number)
        raise DataError(f"{self.folder} contains no document number {number}")

    def live(self) -> Numbers:
        """Numbers of all documents that have not been removed."""
        return np.setdiff1d(np.arange(self.manifest["next"]), self.removed, assume_unique=True)

    def vectors(self, numbers: Numbers) -> Vectors:
        """The vectors of these documents, (documents, width)."""
        out = np.empty((len(numbers), self.info.width), np.float32)
        for part in self.segments:
            inside = (numbers >= part.first) & (numbers < part.first + part.count)
            out[inside] = part.vectors[numbers[inside] - part.first]
        return out

    def nearest(self, queries: Vectors, k: int, *, exact: bool = False) -> tuple[Numbers, Vectors]:
        """The k nearest documents, best first: numbers and cosines, each (queries, k); −1 and −∞ if missing.

        Uses the HNSW graph if there is one and re-ranks its candidates; `exact` compares with all vectors.
        """
        if queries.ndim != 2 or queries.shape[1] != self.info.width:
            raise DataError(
                f"{self.folder} has vectors of width {self.info.width}, "
                f"got queries of shape {queries.shape}; "
                f"embed them with the model of the index ({self.info.model})"
            )
        if self.graph is None or exact:
            return nearest([(part.first, part.vectors) for part in self.segments], queries, k, self.removed)
        candidates = self.graph.search(queries, min(len(self.graph), max(3 * k, k + 20)))
        cosines = np.full(candidates.shape, -np.inf, np.float32)
        for i, row in enumerate(candidates):
            valid = row >= 0
            cosines[i, valid] = self.vectors(row[valid]) @ queries[i]
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(candidates, order, 1), np.take_along_axis(cosines, order, 1)

    def bm25_search(self, query: str, k: int) -> tuple[Numbers, NDArray[np.float64]]:
        """Numbers and BM25 scores of the k best documents; those without any query word are left out."""
        scores = self.bm25.scores(query)  # segments are contiguous, so positions are numbers
        numbers = top_k(scores, k)
        numbers = numbers[scores[numbers] > 0]
        return numbers, scores[numbers]


class _SharedLock:
    """A shared lock on a folder, if the system supports it."""

    def __init__(self, folder: Path) -> None:
        self._handle: int | None = None
        with contextlib.suppress(OSError):  # Windows opens no folders; a missing folder is reported later
            self._handle = os.open(folder, os.O_RDONLY)
            lock_file(self._handle, shared=True)  # waits while a writer deletes files: milliseconds

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            # When a graph cannot be read, usearch closes a handle twice; it may be this one.
            with contextlib.suppress(OSError):
                os.close(handle)

    def __del__(self) -> None:
        self.close()


def _read_manifest(folder: Path) -> dict[str, Any]:
    if not os.path.isdir(folder):
        raise FolderError(
            f"there is no folder {folder}; create an index with `regard index FILES -o {for_shell(folder)}`"
        )
    if not is_file(folder / MANIFEST):
        raise FolderError(
            f"{folder} has no {MANIFEST}, so it is not an index; give a folder written by `regard index`"
        )
    manifest = read_json(folder / MANIFEST)
    missing = {"format", "made", "written", "next", "parts", "graph", "removed"} - set(manifest)
    if missing:
        raise FolderError(
            f"{folder / MANIFEST} has no {sorted(missing)[0]!r}; "
            "it was not written by `regard index`, or is damaged"
        )
    if manifest["format"] != FORMAT:
        raise FolderError(
            f"{folder} has format {manifest['format']!r:.40} (regard {manifest.get('regard', '?')!s:.40}) "
            f"and this regard reads format {FORMAT}; install that version, or build the index again"
        )
    problem = _problem(manifest)
    if problem:
        raise FolderError(
            f"{folder / MANIFEST}: {problem}; it is damaged, so copy the index or build it again"
        )
    return manifest


def _problem(manifest: dict[str, Any]) -> str | None:
    """The first problem with the entries of index.json, or None."""
    made, total = manifest["made"], 0
    if not isinstance(made, dict) or set(made) != set(IndexInfo._fields):
        return f"'made' does not have the keys {', '.join(IndexInfo._fields)}"
    if (
        not isinstance(made["model"], str)
        or not isinstance(made["fingerprint"], str)
        or not _is_count(made["width"], 1, 1 << 20)
    ):
        return "'made' must hold a model, its fingerprint and the vector width"
    if not _is_count(manifest["written"]) or not _is_count(manifest["next"]):
        counts = f"{manifest['written']!r:.40} and {manifest['next']!r:.40}"
        return f"'written' and 'next' are not both counts, got {counts}"
    if not isinstance(manifest["parts"], list):
        return "'parts' is not a list"
    for part in manifest["parts"]:
        if (
            not isinstance(part, dict)
            or set(part) != {"name", "first", "count"}
            or not _is_name("part", part["name"])
        ):
            return f"a part needs a name such as part-000001, 'first' and 'count', got {part!r:.60}"
        if not _is_count(part["count"]) or part["first"] != total or isinstance(part["first"], bool):
            begin = f"got {part['first']!r:.40} and count {part['count']!r:.40}"
            return f"{part['name']} should begin at document {total}, {begin}"
        total += part["count"]
    if total != manifest["next"]:
        return f"its parts contain {total} documents and 'next' is {manifest['next']}"
    if manifest["graph"] is not None and not _is_name("graph", manifest["graph"]):
        return f"'graph' is neither null nor a name such as graph-000001, got {manifest['graph']!r:.60}"
    removed = manifest["removed"]
    if (
        not isinstance(removed, list)
        or not all(_is_count(n, 0, total - 1) for n in removed)
        or any(map(int.__ge__, removed, removed[1:]))
    ):
        return f"'removed' is not an ascending list of document numbers below {total}"
    return None


def _is_count(value: object, least: int = 0, most: int = 1 << 31) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_name(kind: str, name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(rf"{kind}-\d{{6,12}}", name, re.ASCII) is not None
