"""`regard index`: documents into an index, to be searched by meaning and by words."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import document_options as shared

if TYPE_CHECKING:
    from regard.search.documents import Document
    from regard.search.index import Index

CHUNK = 1 << 14  # documents that are embedded and kept before the next; Ctrl-C loses no more


def command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Text (a document per line), .csv, .tsv, .jsonl, also .gz and .xz; or folders of .txt files.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="INDEX", help="Folder of the index.")
    ] = None,
    model: shared.Model = "minilm",
    text: shared.Text = None,
    name: shared.Id = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add to an existing index; skip documents that it has.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Add; replace documents of the same name.")
    ] = False,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Remove this document; repeatable.")
    ] = None,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", help="Rewrite the index without the removed documents and delete their texts."
        ),
    ] = False,
    threads: shared.Threads = 0,
    strict: shared.Strict = False,
) -> None:
    """Build a search index: one embedding per document, plus BM25 statistics.

    Ctrl-C keeps what is done; rerun the same command with --add to continue. Without files, describe the index.

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
        raise OptionError(
            "--remove and --compact take documents out, and files are put in; do one after the other"
        )
    if remove:
        _remove(output, remove, threads)
    if compact:
        _compact(output, threads)
    elif files:
        _build(files, output, model, (text, name, strict), add or replace, replace, threads)
    elif not remove:
        _describe(output)


def _build(
    files: list[Path],
    output: Path,
    model: str,
    columns: tuple[str | None, str | None, bool],
    add: bool,
    again: bool,
    threads: int,
) -> None:
    from regard.search import build_index, hnsw
    from regard.search.index import Index, IndexInfo

    if add:
        index = Index(output)
        model = index.info.model if model == "minilm" else model
    else:
        build_index.check_free(output)
    hnsw.import_usearch()  # before the work, not after it
    found = shared.read(files, *columns)
    embedder = shared.load_embedder(model)
    if add:
        index = Index(output)
        index.check(embedder.fingerprint())
    else:
        index = build_index.create(
            output, IndexInfo(shared.same_path(model), embedder.fingerprint(), embedder.width)
        )
    wanted = _wanted(index, found.documents, again)
    if len(wanted) < len(found.documents):
        shared.say(f"{len(found.documents) - len(wanted):,} documents are there already")
    done = 0
    try:
        while done < len(wanted):
            done += _add(index, wanted[done : done + CHUNK], embedder, again, threads)
    except KeyboardInterrupt:
        words = [word for word in sys.argv[1:] if word != "--add"]
        shared.say(
            f"stopped after {done:,} documents, which are kept; go on with: {shlex.join(['regard', *words, '--add'])}"
        )
        raise typer.Exit(130) from None
    _describe(output)


def _add(index: Index, documents: list[Document], embedder: Any, again: bool, threads: int) -> int:
    from regard.pipelines.embed import embed
    from regard.search import build_index

    vectors = embed([document.text for document in documents], embedder, progress=True)
    build_index.add(index.folder, documents, vectors, overwrite=again, threads=threads)
    return len(documents)


def _wanted(index: Index, documents: list[Document], again: bool) -> list[Document]:
    """Those that are not in the index with the same name and text; a name with another text is refused unless it is replaced."""
    from regard.errors import DataError
    from regard.search.build_index import find_numbers

    known = find_numbers(index, {document.id for document in documents})
    texts = {name: index.document(number).text for name, number in known.items()}
    for document in documents:
        if not again and texts.get(document.id, document.text) != document.text:
            raise DataError(
                f"{index.folder} has another text called {document.id!r}; give it another name, or add --replace"
            )
    return [document for document in documents if texts.get(document.id) != document.text]


def _remove(output: Path, names: list[str], threads: int) -> None:
    from regard.search.build_index import remove

    left = remove(output, names, threads=threads)
    typer.echo(f"{len(set(names))} removed, {len(left):,} documents are left")


def _compact(output: Path, threads: int) -> None:
    from regard.errors import for_shell
    from regard.search.build_index import compact, has_stale_files
    from regard.search.index import Index

    gone = len(Index(output).removed)
    left = compact(output, threads=threads)
    if has_stale_files(left):
        typer.echo(
            f"{len(left):,} documents are there; another process has the old index open, so {gone:,} removed stay on the disk:"
        )
        typer.echo(f"end that process and run `regard index --compact -o {for_shell(output)}` again")
        return
    typer.echo(
        f"{gone:,} removed document{'s' * (gone != 1)} left the disk, {len(left):,} documents are there"
    )


def _describe(output: Path) -> None:
    from regard.search.index import Index

    index = Index(output)
    how = "a graph (HNSW)" if index.manifest["graph"] else "comparing with all"
    typer.echo(
        f"{output}: {len(index):,} documents, vectors of {index.info.width} by {index.info.model}, searched by {how}"
    )
