"""`regard duplicates`: find duplicates and paraphrases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.document_options import DocumentOptions, write_output
from regard.cli.option_groups import check_outputs, grouped

if TYPE_CHECKING:
    from regard.search.documents import Document


@grouped
def command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|INDEX", help="Files and folders as for `regard index`, or an index."),
    ],
    *,
    documents: DocumentOptions,
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
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines.")] = False,
) -> None:
    """Find duplicates and paraphrases, most similar first.

    Writes a table: cosine similarity, the two ids, the two texts; with --groups, the number of the group, id
    and text.

    Examples:

        regard duplicates questions.txt

        regard duplicates papers.index --threshold 0.95 --groups -o groups.tsv
    """
    from regard.cli.jobs import report
    from regard.search import duplicates

    check_outputs(output, inputs=files)
    texts, vectors, _ = documents.embed(files)
    pairs = duplicates.find_pairs(
        vectors, threshold, exact=True if exact else None, threads=documents.threads
    )
    if groups:
        rows = [
            {"group": i, **texts[n]._asdict()}
            for i, group in enumerate(duplicates.group_pairs(pairs), 1)
            for n in group
        ]
    else:
        rows = [_pair(cosine, texts[first], texts[second]) for first, second, cosine in pairs]
    write_output(output, "".join(_line(row, as_json) for row in rows))
    paired = len({n for pair in pairs for n in pair[:2]})
    report(
        f"{len(pairs):,} pairs with cosine at least {threshold:g}; {paired:,} of {len(texts):,} texts are "
        "in a pair"
    )


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

    if as_json:
        return json.dumps(row, ensure_ascii=False) + "\n"
    return "\t".join(normalize_space(str(cell)) for cell in row.values()) + "\n"
