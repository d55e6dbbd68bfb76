"""An index as it lies in a folder: documents with their vectors and words, opened to be searched.

index.json says what belongs to it: parts of documents that are never changed once written, a graph of the vectors once there
are many, and the numbers of documents that were removed. `regard.searching.writing` makes and changes it.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, FolderError
from regard.models.folder import read_json
from regard.searching.bm25 import Bm25
from regard.searching.documents import Document
from regard.searching.graph import Graph
from regard.searching.nearest import best, nearest
from regard.searching.part import Part

FORMAT = 1
TOP = "index.json"
Numbers = NDArray[np.int64]
Vectors = NDArray[np.float32]


class Made(NamedTuple):
    """What made the vectors of an index."""

    model: str  # `minilm`, or the folder
    fingerprint: str
    width: int


class Index:
    """What an index was when it was opened; a writer's changes are seen when it is opened again. Documents have numbers that go
    up from 0 and are not used again until the index is compacted.
    """

    def __init__(self, folder: str | Path, *, threads: int = 0) -> None:
        self.folder, self.threads = Path(folder), threads
        self.top = _read(self.folder)
        self.made = Made(**self.top["made"])

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
    def parts(self) -> list[Part]:
        return [Part(self.folder / entry["name"], entry["first"], entry["count"], self.made.width) for entry in self.top["parts"]]

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
        return None if name is None else Graph.load(self.folder / name / "graph.usearch", self.made.width, threads=self.threads)

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


def _read(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}; `regard index FILES -o {folder}` makes an index")
    if not (folder / TOP).is_file():
        raise FolderError(f"{folder} has no {TOP}, so it is no index; give a folder that `regard index` has written")
    top = read_json(folder / TOP)
    missing = {"format", "made", "written", "next", "parts", "graph", "removed"} - set(top)
    if missing:
        raise FolderError(f"{folder / TOP} has no {sorted(missing)[0]!r}; it was not written by `regard index`, or is damaged")
    if top["format"] != FORMAT:
        raise FolderError(
            f"{folder} has format {top['format']} (regard {top.get('regard', '?')}) and this regard reads format {FORMAT}; "
            "install that version, or build the index again"
        )
    return top
