"""Making and changing an index. What is new is written beside, and index.json is replaced last.

A crash at any moment, or Ctrl-C, leaves the index as it was before or as it should be; the next writer sweeps up what is left
over. Two writers at once are kept apart.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import DataError, OptionError
from regard.files.atomic import write_file, write_folder
from regard.pipelines.output import lock
from regard.search.documents import Document
from regard.search.hnsw import Graph
from regard.search.index import FORMAT, TOP, Index, IndexInfo, Numbers, Vectors
from regard.search.segment import Segment
from regard.version import __version__

MANY = 20_000  # vectors from which on a graph is built; comparing with fewer takes a few milliseconds


def create(folder: str | Path, made: IndexInfo) -> Index:
    """A new index without documents. A folder that holds something is refused."""
    folder = Path(folder)
    free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _replace(
        folder, {"made": made._asdict(), "written": 0, "next": 0, "parts": [], "graph": None, "removed": []}
    )
    return Index(folder)


def free(folder: Path) -> None:
    """Stop in one sentence unless an index can be made there."""
    if folder.exists() and (not folder.is_dir() or any(entry.name != ".lock" for entry in folder.iterdir())):
        raise OptionError(
            f"{folder} is already there; give another folder, or use --add to add to the index in it"
        )


def add(
    folder: str | Path,
    documents: Sequence[Document],
    vectors: Vectors,
    *,
    again: bool = False,
    many: int = MANY,
    threads: int = 0,
) -> Index:
    """Add documents with their vectors. One whose name is there already is refused; with `again` it takes the other's place.

    From `many` documents on there is a graph. `threads` 0 is all cores.
    """
    with _writing(folder) as index:
        if vectors.shape != (len(documents), index.made.width):
            raise DataError(
                f"{len(documents)} documents of {index.folder} need vectors of shape {(len(documents), index.made.width)}, "
                f"got {vectors.shape}; embed them with the index's own model ({index.made.model})"
            )
        known = find(index, {document.id for document in documents})
        if known and not again:
            raise DataError(
                f"a document called {next(iter(known))!r} is in {index.folder} already; give it another name, or add --replace"
            )
        gone = np.array(sorted(known.values()), np.int64)
        first, version = index.top["next"], index.top["written"] + 1
        name = f"part-{version:06d}"
        write_folder(index.folder / name, lambda place: Segment.write(place, documents, vectors))
        graph = _graph(index, version, gone, first, vectors, many, threads)
        part = {"name": name, "first": first, "count": len(documents)}
        parts, removed = [*index.top["parts"], part], np.union1d(index.removed, gone).tolist()
        return _change(
            index, written=version, next=first + len(documents), parts=parts, graph=graph, removed=removed
        )


def remove(folder: str | Path, names: Iterable[str], *, threads: int = 0) -> Index:
    """Take documents out by their names; when one is not there, none is removed."""
    wanted = set(names)
    with _writing(folder) as index:
        known = find(index, wanted)
        missing = sorted(wanted - set(known))
        if missing:
            raise DataError(
                f"there is no document called {missing[0]!r} in {index.folder}; nothing was removed"
            )
        gone, version = np.array(sorted(known.values()), np.int64), index.top["written"] + 1
        none = np.empty((0, index.made.width), np.float32)
        graph = (
            _graph(index, version, gone, index.top["next"], none, MANY, threads)
            if index.top["graph"]
            else None
        )
        return _change(index, written=version, graph=graph, removed=np.union1d(index.removed, gone).tolist())


def compact(folder: str | Path, *, many: int = MANY, threads: int = 0) -> Index:
    """Write the index anew without the documents that were removed, whose texts then leave the disk. Numbers start again at 0.

    While another process has the old index open, its files stay (`leftovers`); the next change without readers deletes them.
    """
    with _writing(folder) as index:
        gone, version = set(index.removed.tolist()), index.top["written"] + 1
        documents = [
            d for part in index.parts for i, d in enumerate(part.documents(), part.first) if i not in gone
        ]
        vectors = index.vectors(index.live())
        name = f"part-{version:06d}"
        write_folder(index.folder / name, lambda place: Segment.write(place, documents, vectors))
        parts = [{"name": name, "first": 0, "count": len(documents)}]
        graph = None
        if len(documents) >= many:
            whole = Graph(index.made.width, threads=threads)
            whole.add(np.arange(len(documents)), vectors)
            graph = _saved(index, version, whole)
        return _change(index, written=version, next=len(documents), parts=parts, graph=graph, removed=[])


def leftovers(index: Index) -> bool:
    """Whether files of an older state are still there because somebody has it open."""
    keep = {entry["name"] for entry in index.top["parts"]} | {index.top["graph"]}
    return any(entry.is_dir() and entry.name not in keep for entry in index.folder.iterdir())


def find(index: Index, names: set[str]) -> dict[str, int]:
    """Numbers of the documents of these names."""
    gone = set(index.removed.tolist())
    return {
        document.id: number
        for part in index.parts
        for number, document in enumerate(part.documents(), part.first)
        if document.id in names and number not in gone
    }


def _graph(
    index: Index, version: int, gone: Numbers, first: int, vectors: Vectors, many: int, threads: int
) -> str | None:
    """The name of a graph that also holds these vectors and no longer those that are gone; None while there are few."""
    old, width = index.top["graph"], index.made.width
    if old is None and len(index) - len(gone) + len(vectors) < many:
        return None
    if old is not None:
        graph = Graph.load(index.folder / old / "graph.usearch", width, change=True, threads=threads)
        graph.remove(gone)
    else:
        graph = Graph(width, threads=threads)
        for part in index.parts:
            numbers = np.arange(part.first, part.first + part.count)
            kept = ~np.isin(numbers, np.union1d(index.removed, gone))
            graph.add(numbers[kept], part.vectors[kept])
    graph.add(np.arange(first, first + len(vectors)), vectors)
    return _saved(index, version, graph)


def _saved(index: Index, version: int, graph: Graph) -> str:
    name = f"graph-{version:06d}"
    write_folder(index.folder / name, lambda place: graph.save(place / "graph.usearch"))
    return name


@contextmanager
def _writing(folder: str | Path) -> Iterator[Index]:
    """The index as it is on the disk now, with other writers kept out."""
    index = Index(folder)
    index.close()
    with (index.folder / ".lock").open("ab") as file:
        lock(file, index.folder)
        yield Index(folder)


def _change(index: Index, **entries: Any) -> Index:
    """Replace index.json by these entries, and delete what no longer belongs to the index unless somebody has it open."""
    top = index.top | entries
    _replace(index.folder, top)
    index.close()
    keep = {entry["name"] for entry in top["parts"]} | {top["graph"]}
    with _alone(index.folder) as alone:
        for entry in index.folder.iterdir():
            unfinished = entry.name.startswith(".")  # left by a crash; no index has it open
            if entry.is_dir() and entry.name not in keep and (alone or unfinished):
                shutil.rmtree(entry, ignore_errors=True)
    return Index(index.folder)


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether no other process or object has the index open; nobody opens it meanwhile."""
    try:
        import fcntl
    except ImportError:  # Windows, which deletes no open file anyway
        yield True
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            pass
        yield True
    finally:
        os.close(handle)


def _replace(folder: Path, top: dict[str, Any]) -> None:
    write_file(folder / TOP, json.dumps({**top, "format": FORMAT, "regard": __version__}).encode())
