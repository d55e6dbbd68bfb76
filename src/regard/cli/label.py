"""`regard label`: a few labelled examples spread over many texts, for a person to look through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import document_options as shared

if TYPE_CHECKING:
    from regard.search.documents import Document


def command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...|INDEX", help="Texts to label, as for `regard index`, or an index."),
    ],
    examples: Annotated[
        list[Path] | None,
        typer.Option(
            "--examples",
            "-e",
            metavar="TSV",
            help="Table with the columns label and text, or a reviewed table; repeatable.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="TSV", help="Write here instead of to standard output.")
    ] = Path("-"),
    at_least: Annotated[
        float | None,
        typer.Option(
            "--take",
            min=0.0,
            max=1.0,
            metavar="P",
            help="Write text and label of the rows that were reviewed or have at least this confidence.",
        ),
    ] = None,
    neighbours: Annotated[
        int, typer.Option(min=1, help="Nearest neighbours that each text takes its label from.")
    ] = 10,
    model: shared.Model = "minilm",
    text: shared.Text = None,
    name: shared.Id = None,
    threads: shared.Threads = 0,
    strict: shared.Strict = False,
) -> None:
    """Label many texts from a few examples by label propagation over similar texts.

    Writes a table with the columns label, suggested, confidence, reviewed, id and text, least confident first. Correct `label`
    where it is wrong and put an x into `reviewed` where it is right; then pass the table to --examples to use these rows too.
    --take P writes the table of texts and labels to train a classifier on.

    Examples:

        regard label questions.txt --examples few.tsv -o review.tsv

        regard label questions.txt --examples few.tsv --examples review.tsv -o review-2.tsv

        regard label review-2.tsv --take 0.9 -o train.tsv
    """
    from regard.errors import OptionError
    from regard.search.label_table import read_table
    from regard.search.label_table import reviewed_labels as said

    shared.check_output(output)
    if at_least is not None:
        if examples:
            raise OptionError(
                "--take reads tables that were reviewed, and examples are for new ones; leave --examples out"
            )
        _take([row for path in files for row in read_table(path)], at_least, output)
        return
    if not examples:
        raise OptionError(
            "labels come from examples; name a table with the columns label and text after --examples"
        )
    given = said([row for path in examples for row in read_table(path)])
    _suggest(files, given, output, (text, name, strict), model, neighbours, threads)


def _suggest(
    files: list[Path],
    given: dict[str, str],
    output: Path,
    columns: tuple[str | None, str | None, bool],
    model: str,
    neighbours: int,
    threads: int,
) -> None:
    from regard.search.label_spreading import spread_labels
    from regard.search.label_table import Row, format_table, normalize_space

    documents, vectors = _vectors(files, given, model, columns)
    known = {
        i: given[normalize_space(document.text)]
        for i, document in enumerate(documents)
        if normalize_space(document.text) in given
    }
    found = spread_labels(vectors, known, neighbours=neighbours, threads=threads)
    labels, sure = found.best()
    rows = [
        Row(
            labels[i],
            document.text,
            labels[i],
            1.0 if i in known else float(sure[i]),
            i in known,
            document.id,
        )
        for i, document in enumerate(documents)
        if document.id or i not in known  # examples that are not among the files are not written again
    ]
    shared.write(output, format_table(rows))
    counts = {label: labels.count(label) for label in found.labels}
    told = ", ".join(f"{label} {count:,}" for label, count in counts.items())
    shared.say(
        f"{len(rows):,} texts from {len(known):,} examples: {told}; {sum(row.confidence >= 0.9 for row in rows):,} at 0.9 and above"
    )


def _vectors(
    files: list[Path], given: dict[str, str], model: str, columns: tuple[str | None, str | None, bool]
) -> tuple[list[Document], Any]:
    """The texts and, behind them under no name, the examples that are not among them."""
    import numpy as np

    from regard.pipelines.embed import embed
    from regard.search.documents import Document
    from regard.search.index import MANIFEST, Index
    from regard.search.label_table import normalize_space

    index = Index(files[0]) if len(files) == 1 and (files[0] / MANIFEST).is_file() else None
    embedder = shared.load_embedder(model if index is None else index.info.model)
    if index is not None:
        index.check(embedder.fingerprint())
        numbers = index.live()
        documents = [index.document(int(number)) for number in numbers]
        vectors = index.vectors(numbers)
    else:
        documents = shared.read(files, *columns).documents
        vectors = embed([document.text for document in documents], embedder, progress=True)
    there = {normalize_space(document.text) for document in documents}
    others = [text for text in given if text not in there]
    return [*documents, *(Document("", text) for text in others)], np.concatenate(
        [vectors, embed(others, embedder)]
    )


def _take(rows: list[Any], least: float, output: Path) -> None:
    from regard.search.label_table import normalize_space, reviewed_labels

    reviewed_labels(rows)  # one text with two labels is refused
    kept = [row for row in rows if row.reviewed or row.confidence >= least]
    shared.write(
        output,
        "text\tlabel\n"
        + "".join(f"{normalize_space(row.text)}\t{normalize_space(row.label)}\n" for row in kept),
    )
    shared.say(
        f"{len(kept):,} of {len(rows):,} texts, {sum(row.reviewed for row in kept):,} of them reviewed"
    )
