"""An index as it lies in a folder: documents with their vectors and words, opened to be searched.

index.json says what belongs to it: parts of documents that are never changed once written, a graph of the vectors once there
are many, and the numbers of documents that were removed. `regard.search.build_index` makes and changes it.
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
from regard.models.folder import as_path, is_file, read_json
from regard.search.bm25 import Bm25
from regard.search.documents import Document
from regard.search.exact import best, nearest
from regard.search.hnsw import Graph
from regard.search.segment import Segment

FORMAT = 1
TOP = "index.json"
Numbers = NDArray[np.int64]
Vectors = NDArray[np.float32]


class IndexInfo(NamedTuple):
    """What made the vectors of an index."""

    model: str  # `minilm`, or the folder
    fingerprint: str
    width: int


class Index:
    """What an index was when it was opened; a writer's changes are seen when it is opened again. Documents have numbers that go
    up from 0 and are not used again until the index is compacted.

    Its files are compared with their checksums. While it is open, a shared lock on the folder keeps writers from deleting
    parts that they have replaced; the next writer deletes them.
    """

    def __init__(self, folder: str | Path, *, threads: int = 0) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int) or not 0 <= threads <= 4096:
            raise OptionError(f"threads is a whole number between 0 (all cores) and 4096, got {threads!r}")
        self.folder, self.threads = as_path("folder", folder), threads
        self._reading = _Reading(self.folder)
        self.top = _read(self.folder)
        self.made = IndexInfo(**self.top["made"])
        for name in [
            *(entry["name"] for entry in self.top["parts"]),
            *([self.top["graph"]] if self.top["graph"] else []),
        ]:
            verify_listed(self.folder / name)

    def close(self) -> None:
        """Give up the lock: writers may delete what this index was opened with. Also done when it is garbage collected."""
        self._reading.close()

    def __len__(self) -> int:
        return self.top["next"] - len(self.removed)

    def check(self, fingerprint: str) -> None:
        """Vectors of two models do not compare: stop unless this is the one that made the index."""
        if fingerprint != self.made.fingerprint:
            raise FolderError(
                f"{self.folder} was built by another model ({self.made.model}, {self.made.fingerprint[:12]}) than this one "
                f"({fingerprint[:12]}), and their vectors do not compare; use that model, or build the index again"
            )

    @cached_property
    def parts(self) -> list[Segment]:
        return [
            Segment(self.folder / entry["name"], entry["first"], entry["count"], self.made.width)
            for entry in self.top["parts"]
        ]

    @cached_property
    def removed(self) -> Numbers:
        """Numbers of documents that are gone, in rising order."""
        return np.array(self.top["removed"], np.int64)

    @cached_property
    def bm25(self) -> Bm25:
        return Bm25([part.postings for part in self.parts], self.removed)

    @cached_property
    def graph(self) -> Graph | None:
        name = self.top["graph"]
        return (
            None
            if name is None
            else Graph.load(self.folder / name / "graph.usearch", self.made.width, threads=self.threads)
        )

    def document(self, number: int) -> Document:
        for part in self.parts:
            if part.first <= number < part.first + part.count:
                return part.document(number)
        raise DataError(f"there is no document number {number} in {self.folder}")

    def live(self) -> Numbers:
        """Numbers of all documents that are not removed."""
        return np.setdiff1d(np.arange(self.top["next"]), self.removed, assume_unique=True)

    def vectors(self, numbers: Numbers) -> Vectors:
        """The vectors of some documents."""
        out = np.empty((len(numbers), self.made.width), np.float32)
        for part in self.parts:
            mine = (numbers >= part.first) & (numbers < part.first + part.count)
            out[mine] = part.vectors[numbers[mine] - part.first]
        return out

    def near(self, queries: Vectors, k: int, *, exact: bool = False) -> tuple[Numbers, Vectors]:
        """Numbers and cosines of the k nearest documents, best first, (queries, k); −1 and −∞ where there are no more.

        Through the graph if there is one: its shortlist is put into order by the vectors themselves. `exact` compares with all.
        """
        if queries.ndim != 2 or queries.shape[1] != self.made.width:
            raise DataError(
                f"the vectors of {self.folder} are {self.made.width} wide, and a query of shape {queries.shape} does not compare; "
                f"embed it with the index's own model ({self.made.model})"
            )
        if self.graph is None or exact:
            return nearest([(part.first, part.vectors) for part in self.parts], queries, k, self.removed)
        listed = self.graph.near(queries, min(len(self.graph), max(3 * k, k + 20)))
        cosines = np.full(listed.shape, -np.inf, np.float32)
        for i, row in enumerate(listed):
            real = row >= 0
            cosines[i, real] = self.vectors(row[real]) @ queries[i]
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(listed, order, 1), np.take_along_axis(cosines, order, 1)

    def words(self, query: str, k: int) -> tuple[Numbers, NDArray[np.float64]]:
        """Numbers and scores of the k best documents by BM25; those that hold no word of the query are left out."""
        scores = self.bm25.scores(query)  # parts follow each other without gaps, so a place is a number
        found = best(scores, k)
        found = found[scores[found] > 0]
        return found, scores[found]


class _Reading:
    """A shared lock on a folder, where the system has such locks."""

    def __init__(self, folder: Path) -> None:
        self._handle: int | None = None
        try:
            import fcntl

            self._handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(self._handle, fcntl.LOCK_SH)  # waits while a writer sweeps, which takes milliseconds
        except (
            ImportError,
            OSError,
        ):  # Windows, some network file systems; a folder that is missing is reported later
            self.close()

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(
                OSError
            ):  # usearch closes a handle twice when a graph cannot be read; it may be this one
                os.close(handle)

    def __del__(self) -> None:
        self.close()


def _read(folder: Path) -> dict[str, Any]:
    if not os.path.isdir(folder):
        raise FolderError(
            f"there is no folder {folder}; `regard index FILES -o {for_shell(folder)}` makes an index"
        )
    if not is_file(folder / TOP):
        raise FolderError(
            f"{folder} has no {TOP}, so it is no index; give a folder that `regard index` has written"
        )
    top = read_json(folder / TOP)
    missing = {"format", "made", "written", "next", "parts", "graph", "removed"} - set(top)
    if missing:
        raise FolderError(
            f"{folder / TOP} has no {sorted(missing)[0]!r}; it was not written by `regard index`, or is damaged"
        )
    if top["format"] != FORMAT:
        raise FolderError(
            f"{folder} has format {top['format']!r:.40} (regard {top.get('regard', '?')!s:.40}) and this regard reads "
            f"format {FORMAT}; install that version, or build the index again"
        )
    problem = _problem(top)
    if problem:
        raise FolderError(f"{folder / TOP}: {problem}; it is damaged, so copy the index or build it again")
    return top


def _problem(top: dict[str, Any]) -> str | None:
    """What is wrong with the entries of an index.json, or None."""
    made, at = top["made"], 0
    if not isinstance(made, dict) or set(made) != set(IndexInfo._fields):
        return f"'made' does not have the keys {', '.join(IndexInfo._fields)}"
    if (
        not isinstance(made["model"], str)
        or not isinstance(made["fingerprint"], str)
        or not _count(made["width"], 1, 1 << 20)
    ):
        return "'made' does not name a model, its fingerprint and the width of its vectors"
    if not _count(top["written"]) or not _count(top["next"]):
        return f"'written' and 'next' are not both counts, got {top['written']!r:.40} and {top['next']!r:.40}"
    if not isinstance(top["parts"], list):
        return "'parts' is no list"
    for part in top["parts"]:
        if (
            not isinstance(part, dict)
            or set(part) != {"name", "first", "count"}
            or not _named("part", part["name"])
        ):
            return f"a part is a name such as part-000001, 'first' and 'count', got {part!r:.60}"
        if not _count(part["count"]) or part["first"] != at or isinstance(part["first"], bool):
            return f"{part['name']} should begin at document {at}, got {part['first']!r:.40} and count {part['count']!r:.40}"
        at += part["count"]
    if at != top["next"]:
        return f"its parts hold {at} documents and 'next' is {top['next']}"
    if top["graph"] is not None and not _named("graph", top["graph"]):
        return f"'graph' is neither null nor a name such as graph-000001, got {top['graph']!r:.60}"
    gone = top["removed"]
    if (
        not isinstance(gone, list)
        or not all(_count(n, 0, at - 1) for n in gone)
        or any(map(int.__ge__, gone, gone[1:]))
    ):
        return f"'removed' is no rising list of document numbers below {at}"
    return None


def _count(value: object, least: int = 0, most: int = 1 << 31) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _named(kind: str, name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(rf"{kind}-\d{{6,12}}", name, re.ASCII) is not None
