"""`regard label`: label many texts from a few examples, for review."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.document_options import DocumentOptions, write_output
from regard.cli.option_groups import check_outputs, grouped
from regard.errors import for_shell

if TYPE_CHECKING:
    from regard.search.documents import Document


@grouped
def command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|INDEX", help="Texts to label, as for `regard index`, or an index."),
    ],
    *,
    documents: DocumentOptions,
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
) -> None:
    """Label many texts from a few examples by label propagation over similar texts.

    Writes a table with the columns label, suggested, confidence, reviewed, id and text, least confident
    first. Correct `label` where it is wrong and put an x into `reviewed` where it is right; then pass the
    table to --examples to use these rows too. --take P writes texts and labels as training data.

    Examples:

        regard label questions.txt --examples few.tsv -o review.tsv

        regard label questions.txt --examples review.tsv -o review-2.tsv

        regard label review-2.tsv --take 0.9 -o train.tsv
    """
    from regard.errors import OptionError
    from regard.search.label_table import read_table, reviewed_labels

    check_outputs(output, inputs=[*files, *(examples or ())])
    if at_least is not None:
        if examples:
            raise OptionError("--take reads reviewed tables and needs no --examples; leave it out")
        _take([row for path in files for row in read_table(path)], at_least, output)
        return
    if not examples:
        raise OptionError("give examples: --examples TSV, a table with the columns label and text")
    labels = reviewed_labels([row for path in examples for row in read_table(path)])
    _suggest(files, labels, output, documents, neighbours)


def _suggest(
    files: list[Path], labelled: dict[str, str], output: Path, options: DocumentOptions, neighbours: int
) -> None:
    """Write a table with a suggested label for every text; `labelled` maps texts of examples to labels."""
    from regard.cli.jobs import report
    from regard.search.label_spreading import spread_labels
    from regard.search.label_table import LabelRow, format_table, normalize_space

    _refuse_reviewed(output, labelled)
    documents, vectors = _embed(files, labelled, options)
    texts = [normalize_space(document.text) for document in documents]
    known_labels = {i: labelled[text] for i, text in enumerate(texts) if text in labelled}
    spread = spread_labels(vectors, known_labels, neighbours=neighbours, threads=options.threads)
    labels, confidence = spread.best()
    rows = [
        LabelRow(
            labels[i],
            document.text,
            labels[i],
            1.0 if i in known_labels else float(confidence[i]),
            i in known_labels,
            document.id,
        )
        for i, document in enumerate(documents)
        if document.id or i not in known_labels  # examples that are not in the files are not written again
    ]
    write_output(output, format_table(rows))
    count = Counter(row.label for row in rows)
    counts = ", ".join(f"{label} {count[label]:,}" for label in spread.labels)
    confident = sum(row.confidence >= 0.9 for row in rows)
    report(
        f"{len(rows):,} texts from {len(known_labels):,} examples: {counts}; "
        f"{confident:,} with confidence at least 0.9"
    )


def _refuse_reviewed(output: Path, labelled: dict[str, str]) -> None:
    """Raise an OptionError if the output has labels that somebody reviewed and that are no examples."""
    from regard.errors import DataError, OptionError
    from regard.search.label_table import normalize_space, read_table

    try:
        rows = read_table(output) if output.is_file() else []
    except (DataError, OSError):
        return
    known = {text: normalize_space(label) for text, label in labelled.items()}
    if any(row.reviewed and known.get(normalize_space(row.text)) != row.label for row in rows):
        raise OptionError(
            f"{output} has labels that were reviewed; add --examples {for_shell(output)} and write another "
            "file, or remove it"
        )


def _embed(
    files: list[Path], labelled: dict[str, str], options: DocumentOptions
) -> tuple[list[Document], Any]:
    """Return the texts and their vectors, followed by the examples that are not among them, without an id."""
    import numpy as np

    from regard.models.embedder import Embedder
    from regard.pipelines.embed import embed
    from regard.search.documents import Document
    from regard.search.index import Index
    from regard.search.label_table import normalize_space

    documents, vectors, embedder = options.embed(files)
    if embedder is None:
        index = Index(files[0])
        embedder = Embedder.load(index.info.model)
        index.check(embedder.fingerprint())
    present = {normalize_space(document.text) for document in documents}
    others = [text for text in labelled if text not in present]
    all_documents = [*documents, *(Document("", text) for text in others)]
    return all_documents, np.concatenate([vectors, embed(others, embedder)])


def _take(rows: list[Any], least: float, output: Path) -> None:
    """Write text and label of the rows that were reviewed or are confident enough."""
    from regard.cli.jobs import report
    from regard.search.label_table import normalize_space, reviewed_labels

    reviewed_labels(rows)  # a text with two labels is an error
    selected = [row for row in rows if row.reviewed or row.confidence >= least]
    lines = (f"{normalize_space(row.text)}\t{normalize_space(row.label)}\n" for row in selected)
    write_output(output, "text\tlabel\n" + "".join(lines))
    reviewed = sum(row.reviewed for row in selected)
    report(f"{len(selected):,} of {len(rows):,} texts, {reviewed:,} of them reviewed")
