"""Create and change an index: create, add, remove, compact.

Every change writes new files first and replaces index.json last, so a crash or Ctrl-C leaves either the old
or the new index. The next writer deletes leftover files. A lock keeps out a second writer.
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
from regard.files.lock import lock_file
from regard.models.catalog import find_model
from regard.pipelines.job import lock_output
from regard.search.documents import Document
from regard.search.hnsw import HnswGraph
from regard.search.index import FORMAT, MANIFEST, Index, IndexInfo, Numbers, Vectors
from regard.search.segment import Segment
from regard.version import __version__

# From this many vectors on there is an HNSW graph; exact search over fewer takes a few milliseconds.
MIN_GRAPH_SIZE = 20_000


def create(folder: str | Path, info: IndexInfo) -> Index:
    """Create an empty index. A folder that is not empty is an error."""
    folder = Path(folder)
    check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write_manifest(
        folder, {"made": info._asdict(), "written": 0, "next": 0, "parts": [], "graph": None, "removed": []}
    )
    return Index(folder)


def check_free(folder: Path) -> None:
    """Raise OptionError unless the folder is missing or empty."""
    if folder.exists() and (
        not folder.is_dir() or any(not entry.name.startswith(".") for entry in folder.iterdir())
    ):
        raise OptionError(
            f"{folder} already exists; give another folder, or use --add to add to the index in it"
        )


def add(
    folder: str | Path,
    documents: Sequence[Document],
    vectors: Vectors,
    *,
    overwrite: bool = False,
    min_graph_size: int = MIN_GRAPH_SIZE,
    threads: int = 0,
) -> Index:
    """Add documents and their vectors, (documents, width).

    A document whose id is already in the index is an error, or replaces the old one with `overwrite`. From
    `min_graph_size` documents on, the index has an HNSW graph. `threads=0` uses all cores.
    """
    with _writing(folder) as index:
        if vectors.shape != (len(documents), index.info.width):
            raise DataError(
                f"{len(documents)} documents of {index.folder} need vectors of shape "
                f"{(len(documents), index.info.width)}, got {vectors.shape}; "
                f"embed them with the model of the index ({index.info.model})"
            )
        known = find_numbers(index, {document.id for document in documents})
        if known and not overwrite:
            raise DataError(
                f"{index.folder} already contains a document with id {next(iter(known))!r}; "
                "give it another id, or add --replace"
            )
        to_remove = np.array(sorted(known.values()), np.int64)
        first, version = index.manifest["next"], index.manifest["written"] + 1
        name = f"part-{version:06d}"
        write_folder(index.folder / name, lambda place: Segment.write(place, documents, vectors))
        graph = _update_graph(index, version, to_remove, first, vectors, min_graph_size, threads)
        segment = {"name": name, "first": first, "count": len(documents)}
        return _change(
            index,
            written=version,
            next=first + len(documents),
            parts=[*index.manifest["parts"], segment],
            graph=graph,
            removed=np.union1d(index.removed, to_remove).tolist(),
        )


def remove(folder: str | Path, ids: Iterable[str], *, threads: int = 0) -> Index:
    """Remove documents by id. If one id is missing, nothing is removed."""
    wanted = set(ids)
    with _writing(folder) as index:
        known = find_numbers(index, wanted)
        missing = sorted(wanted - set(known))
        if missing:
            raise DataError(
                f"{index.folder} contains no document with id {missing[0]!r}; nothing was removed"
            )
        to_remove, version = np.array(sorted(known.values()), np.int64), index.manifest["written"] + 1
        no_vectors = np.empty((0, index.info.width), np.float32)
        graph = (
            _update_graph(
                index, version, to_remove, index.manifest["next"], no_vectors, MIN_GRAPH_SIZE, threads
            )
            if index.manifest["graph"]
            else None
        )
        return _change(
            index, written=version, graph=graph, removed=np.union1d(index.removed, to_remove).tolist()
        )


def compact(folder: str | Path, *, min_graph_size: int = MIN_GRAPH_SIZE, threads: int = 0) -> Index:
    """Rewrite the index without removed documents, which also deletes their texts. Numbers restart at 0.

    While another process has the old index open, its files stay (`has_stale_files`); the next change without
    readers deletes them.
    """
    with _writing(folder) as index:
        removed, version = set(index.removed.tolist()), index.manifest["written"] + 1
        documents = [
            d
            for segment in index.segments
            for i, d in enumerate(segment.documents(), segment.first)
            if i not in removed
        ]
        vectors = index.vectors(index.live())
        name = f"part-{version:06d}"
        write_folder(index.folder / name, lambda place: Segment.write(place, documents, vectors))
        parts = [{"name": name, "first": 0, "count": len(documents)}]
        graph = None
        if len(documents) >= min_graph_size:
            new_graph = HnswGraph(index.info.width, threads=threads)
            new_graph.add(np.arange(len(documents)), vectors)
            graph = _save_graph(index, version, new_graph)
        return _change(index, written=version, next=len(documents), parts=parts, graph=graph, removed=[])


def has_stale_files(index: Index) -> bool:
    """True if files of an older state remain because a reader still has them open."""
    keep = {entry["name"] for entry in index.manifest["parts"]} | {index.manifest["graph"]}
    return any(entry.is_dir() and entry.name not in keep for entry in index.folder.iterdir())


def find_numbers(index: Index, ids: set[str]) -> dict[str, int]:
    """Map document ids to document numbers; ids that are not in the index are left out."""
    removed = set(index.removed.tolist())
    return {
        document.id: number
        for segment in index.segments
        for number, document in enumerate(segment.documents(), segment.first)
        if document.id in ids and number not in removed
    }


def _update_graph(
    index: Index,
    version: int,
    to_remove: Numbers,
    first: int,
    vectors: Vectors,
    min_graph_size: int,
    threads: int,
) -> str | None:
    """Update or build the HNSW graph and save it under a new name; None while there are too few vectors."""
    old, width = index.manifest["graph"], index.info.width
    if old is None and len(index) - len(to_remove) + len(vectors) < min_graph_size:
        return None
    if old is not None:
        graph = HnswGraph.load(index.folder / old / "graph.usearch", width, change=True, threads=threads)
        graph.remove(to_remove)
    else:
        graph = HnswGraph(width, threads=threads)
        for segment in index.segments:
            numbers = np.arange(segment.first, segment.first + segment.count)
            kept = ~np.isin(numbers, np.union1d(index.removed, to_remove))
            graph.add(numbers[kept], segment.vectors[kept])
    graph.add(np.arange(first, first + len(vectors)), vectors)
    return _save_graph(index, version, graph)


def _save_graph(index: Index, version: int, graph: HnswGraph) -> str:
    name = f"graph-{version:06d}"
    write_folder(index.folder / name, lambda place: graph.save(place / "graph.usearch"))
    return name


@contextmanager
def _writing(folder: str | Path) -> Iterator[Index]:
    """Lock the folder against other writers and open the index as it is on disk now."""
    index = Index(folder)
    index.close()
    with (index.folder / ".lock").open("ab") as file:
        lock_output(file, index.folder)
        yield Index(folder)


def _change(index: Index, **entries: Any) -> Index:
    """Update entries of index.json; delete files it no longer names unless a reader has them open."""
    manifest = index.manifest | entries
    _write_manifest(index.folder, manifest)
    index.close()
    keep = {entry["name"] for entry in manifest["parts"]} | {manifest["graph"]}
    with _alone(index.folder) as alone:
        for entry in index.folder.iterdir():
            unfinished = entry.name.startswith(".")  # left by a crash; no index has it open
            if entry.is_dir() and entry.name not in keep and (alone or unfinished):
                shutil.rmtree(entry, ignore_errors=True)
    return Index(index.folder)


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """True if no other process or object has the index open; while True, opening it waits."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders, and deletes no file that is open
        yield True
        return
    try:
        yield lock_file(handle, wait=False) is not False
    finally:
        os.close(handle)


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    write_file(folder / MANIFEST, json.dumps({**manifest, "format": FORMAT, "regard": __version__}).encode())


def stored_name(name: str) -> str:
    """Return how an index stores the name of its model: a folder by its full path."""
    return name if name == "minilm" else str(find_model(name).resolve())
