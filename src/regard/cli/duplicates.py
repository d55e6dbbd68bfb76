"""`regard duplicates`: texts that say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import document_options as shared

if TYPE_CHECKING:
    from regard.search.documents import Document


def command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...|INDEX", help="Files and folders as for `regard index`, or an index."),
    ],
    threshold: Annotated[
        float,
        typer.Option("--threshold", "-t", min=-1.0, max=1.0, help="Minimum cosine similarity of duplicates."),
    ] = 0.9,
    groups: Annotated[
        bool, typer.Option("--groups", help="Write groups of duplicates instead of pairs.")
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of to standard output.")
    ] = Path("-"),
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare all pairs instead of approximate nearest neighbours.")
    ] = False,
    model: shared.Model = "minilm",
    text: shared.Text = None,
    name: shared.Id = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines.")] = False,
    threads: shared.Threads = 0,
    strict: shared.Strict = False,
) -> None:
    """Find duplicates and paraphrases, most similar first.

    Writes a table: cosine similarity, the two names, the two texts; with --groups one line per text, with the number of its group.

    Examples:

        regard duplicates questions.txt

        regard duplicates papers.index --threshold 0.95 --groups -o groups.tsv
    """
    from regard.search import duplicates

    shared.check_output(output)
    documents, vectors = _vectors(files, model, (text, name, strict))
    pairs = duplicates.find_pairs(vectors, threshold, exact=True if exact else None, threads=threads)
    if groups:
        found = [
            (i, document)
            for i, group in enumerate(duplicates.group_pairs(pairs), 1)
            for document in (documents[n] for n in group)
        ]
        rows: list[dict[str, Any]] = [{"group": i, **document._asdict()} for i, document in found]
    else:
        rows = [_pair(cosine, documents[first], documents[second]) for first, second, cosine in pairs]
    shared.write(output, "".join(_line(row, as_json) for row in rows))
    within = len({n for pair in pairs for n in pair[:2]})
    shared.say(
        f"{len(pairs):,} pairs of cosine {threshold:g} and above; {within:,} of {len(documents):,} texts are in one"
    )


def _vectors(
    files: list[Path], model: str, columns: tuple[str | None, str | None, bool]
) -> tuple[list[Document], Any]:
    from regard.pipelines.embed import embed
    from regard.search.index import MANIFEST, Index

    if len(files) == 1 and (files[0] / MANIFEST).is_file():
        index = Index(files[0])
        numbers = index.live()
        return [index.document(int(number)) for number in numbers], index.vectors(numbers)
    found = shared.read(files, *columns)
    return found.documents, embed(found.texts, shared.load_embedder(model), progress=True)


def _pair(cosine: float, a: Document, b: Document) -> dict[str, Any]:
    return {
        "cosine": round(cosine, 4),
        "first": a.id,
        "second": b.id,
        "first_text": a.text,
        "second_text": b.text,
    }


def _line(row: dict[str, Any], as_json: bool) -> str:
    from regard.search.label_table import normalize_space

    return (
        json.dumps(row, ensure_ascii=False)
        if as_json
        else "\t".join(normalize_space(str(cell)) for cell in row.values())
    ) + "\n"
