"""`regard index`: build and change a search index."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.document_options import DocumentOptions
from regard.cli.option_groups import grouped

if TYPE_CHECKING:
    from regard.search.documents import Document
    from regard.search.index import Index

CHUNK = 1 << 14  # documents embedded and saved at a time; Ctrl-C loses at most so many


@grouped
def command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Text (a document per line), .csv, .tsv, .jsonl, also .gz and .xz; or folders of .txt "
            "files.",
        ),
    ] = None,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="INDEX", help="Folder of the index.")
    ] = None,
    documents: DocumentOptions,
    add: Annotated[
        bool, typer.Option("--add", help="Add to an existing index; skip documents that it has.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Add, and replace documents with the same id.")
    ] = False,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Remove this document; repeatable.")
    ] = None,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", help="Rewrite the index without the removed documents and delete their texts."
        ),
    ] = False,
) -> None:
    """Build a search index: one embedding per document, plus BM25 statistics.

    After Ctrl-C, rerun the same command with --add to continue. Without files, describe the index.

    Examples:

        regard index notes.txt -o notes.index

        regard index papers.csv --text abstract --id doi -o papers.index

        regard index new.csv --text abstract --id doi -o papers.index --add

        regard index -o papers.index --remove 10.1000/182 --compact

        regard index texts/ --model runs/embed-tatoeba -o texts.index
    """
    from regard.errors import OptionError

    if output is None:
        raise OptionError("name the folder of the index with -o INDEX")
    if (remove or compact) and files:
        raise OptionError("--remove and --compact take no files; run one command after the other")
    if remove:
        _remove(output, remove, documents.threads)
    if compact:
        _compact(output, documents.threads)
    elif files:
        _build(files, output, documents, add=add or replace, replace=replace)
    elif not remove:
        _describe(output)


def _build(files: list[Path], output: Path, options: DocumentOptions, *, add: bool, replace: bool) -> None:
    """Create an index, or add to one, in chunks that are kept when interrupted."""
    from regard.cli.jobs import report
    from regard.models.embedder import Embedder
    from regard.search import build_index, hnsw
    from regard.search.index import Index, IndexInfo

    model = options.model
    if not add:
        build_index.check_free(output)
    elif model == "minilm":
        model = Index(output).info.model
    hnsw.import_usearch()  # fails before the work, not after it
    documents_read = options.read(files)
    embedder = Embedder.load(model)
    if add:
        index = Index(output)
        index.check(embedder.fingerprint())
    else:
        info = IndexInfo(build_index.stored_name(model), embedder.fingerprint(), embedder.width)
        index = build_index.create(output, info)
    documents = _missing(index, documents_read.documents, replace)
    if len(documents) < len(documents_read.documents):
        report(f"{len(documents_read.documents) - len(documents):,} documents are already in the index")
    done = 0
    try:
        while done < len(documents):
            done += _add(index, documents[done : done + CHUNK], embedder, replace, options.threads)
    except KeyboardInterrupt:
        arguments = [argument for argument in sys.argv[1:] if argument != "--add"]
        command = shlex.join(["regard", *arguments, "--add"])
        report(f"stopped after {done:,} documents, which are kept; resume with: {command}")
        raise typer.Exit(130) from None
    _describe(output)


def _add(index: Index, documents: list[Document], embedder: Any, replace: bool, threads: int) -> int:
    from regard.pipelines.embed import embed
    from regard.search import build_index

    vectors = embed([document.text for document in documents], embedder, progress=True)
    build_index.add(index.folder, documents, vectors, overwrite=replace, threads=threads)
    return len(documents)


def _missing(index: Index, documents: list[Document], replace: bool) -> list[Document]:
    """Return the documents that are not in the index with the same id and text.

    An id with another text is an error unless documents are replaced.
    """
    from regard.errors import DataError
    from regard.search.build_index import find_numbers

    known = find_numbers(index, {document.id for document in documents})
    texts = {name: index.document(number).text for name, number in known.items()}
    for document in documents:
        if not replace and texts.get(document.id, document.text) != document.text:
            raise DataError(
                f"{index.folder} has a document {document.id!r} with another text; "
                "give it another id, or add --replace"
            )
    return [document for document in documents if texts.get(document.id) != document.text]


def _remove(output: Path, ids: list[str], threads: int) -> None:
    from regard.search.build_index import remove

    index = remove(output, ids, threads=threads)
    typer.echo(f"{len(set(ids))} removed, {len(index):,} documents left")


def _compact(output: Path, threads: int) -> None:
    from regard.errors import for_shell
    from regard.search.build_index import compact, has_stale_files
    from regard.search.index import Index

    removed = len(Index(output).removed)
    index = compact(output, threads=threads)
    if has_stale_files(index):
        typer.echo(
            f"{len(index):,} documents left; another process has the old index open, "
            f"so {removed:,} removed ones stay on the disk:"
        )
        typer.echo(f"end that process and run `regard index --compact -o {for_shell(output)}` again")
        return
    typer.echo(
        f"{removed:,} removed document{'s' * (removed != 1)} deleted from the disk, "
        f"{len(index):,} documents left"
    )


def _describe(output: Path) -> None:
    from regard.search.index import Index

    index = Index(output)
    method = "HNSW" if index.manifest["graph"] else "exact search"
    typer.echo(
        f"{output}: {len(index):,} documents, vectors of width {index.info.width} by {index.info.model}, "
        f"{method}"
    )
