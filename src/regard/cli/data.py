"""`regard data`: list, describe and download corpora, and describe files of your own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from regard.data.corpora import NamedCorpus
    from regard.data.readers import Rows


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME | get NAME… | FILES…",
            help="A corpus, corpora to download, or files of your own.",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split of the corpus: train, validation, test or its name."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Language, column (name, or number from 1) or field of the source.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Language, column (name, or number from 1) or field of the target.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Another version of the text, such as tok of multi30k.")
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=0, max=1000, help="Number of rows to show.")
    ] = 5,
) -> None:
    """List corpora, describe or download one, or describe files of your own.

    Examples:

        regard data                      # corpora, sizes and licences

        regard data sst2                 # splits, rows and samples of it

        regard data get sst2 multi30k    # download into REGARD_DATA or ./data

        regard data my.csv

    `get` prints the licence first. Rerun the command to resume an interrupted download. HTTPS_PROXY is
    respected; with REGARD_MIRROR=https://HOST files come from HOST/OWNER/REPOSITORY/COMMIT/PATH instead of
    GitHub.

    Two files, a .tsv or a .csv are sentence pairs, as are files with --source and --target (suffixes,
    columns of a table, or fields of .jsonl); other files are text. A table whose second column has few
    distinct values is texts and labels. All files may be .gz or .xz.
    """
    from rich.console import Console

    from regard.data import corpora

    console = Console(highlight=False)
    if not names:
        _list(console)
    elif names[0] == "get":
        _get(names[1:])
    elif names[0] in corpora.names() or (len(names) == 1 and not set("./") & set(names[0])):
        _corpus(console, corpora.find(names[0]), split, source, target, version, samples)
    else:
        _own_files(console, names, source, target, samples)


def _get(names: list[str]) -> None:
    """Download corpora one after the other; all names are checked first."""
    from regard.data import corpora
    from regard.data.download import RESUME_HINT, get
    from regard.errors import DataError

    if not names:
        raise DataError(
            "`regard data get` needs a name, such as `regard data get sst2`; `regard data` lists them"
        )
    for corpus in [corpora.find(name) for name in dict.fromkeys(names)]:
        was_present = corpus.present()
        try:
            folder = get(corpus.name)
        except KeyboardInterrupt:
            typer.echo(f"regard: stopped; {RESUME_HINT}", err=True)
            raise typer.Exit(130) from None
        typer.echo(f"{corpus.name} is {'already ' if was_present else ''}in {folder}")


def offer(data: Any) -> None:
    """On a terminal, ask whether to download the missing corpora of a `data` section."""
    from regard.data import corpora
    from regard.data.download import get, megabytes

    if not can_ask():
        return
    for corpus in map(corpora.find, corpora.named_in(data)):
        if corpus.downloads and not corpus.present():
            facts = f"{megabytes(corpus.downloads)}, licence: {corpus.licence}"
            question = f"{corpus.name} is not in {corpus.folder}: {facts}. Download it now? [y/N] "
            print(question, end="", file=sys.stderr, flush=True)  # standard output may be redirected
            if sys.stdin.readline().strip().lower() in ("y", "yes"):
                get(corpus.name)


def can_ask() -> bool:
    """True if a user can answer on a terminal; never under torchrun."""
    return sys.stdin.isatty() and sys.stderr.isatty() and "RANK" not in os.environ


def _list(console: Console) -> None:
    from rich.table import Table

    from regard.data import corpora
    from regard.data.download import megabytes

    console.print(f"corpora under {corpora.data_folder()} (set by REGARD_DATA)", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("name", "here", "get", "task", "languages", "train rows", "licence"):
        right = name in ("get", "train rows")
        table.add_column(name, justify="right" if right else "left", no_wrap=name in ("name", "get"))
    for corpus in map(corpora.find, corpora.names()):
        rows = _count(corpus.row_count("train")) if "train" in corpus.roles else "–"
        size = megabytes(corpus.downloads) if corpus.downloads else "by hand" if corpus.by_hand else "–"
        present = "yes" if corpus.present() else "no"
        table.add_row(
            corpus.name, present, size, corpus.task, " ".join(corpus.languages), rows, corpus.licence
        )
    console.print(table)
    console.print("`regard data NAME` describes one, `regard data get NAME` downloads it.")


def _corpus(
    console: Console,
    corpus: NamedCorpus,
    split: str | None,
    source: str | None,
    target: str | None,
    version: str | None,
    samples: int,
) -> None:
    from rich.table import Table

    from regard.data.row_formats import row_format_of

    console.print(f"[bold]{corpus.name}[/bold]: {corpus.about}")
    for name, text in (
        ("source", corpus.source),
        ("licence", corpus.licence),
        ("cite", corpus.cite),
        ("folder", corpus.folder),
    ):
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    if corpus.versions:
        console.print(f"versions: the default, {', '.join(corpus.versions)}")
    files = corpus.check()
    _states(console, corpus, files)
    if not corpus.splits:
        return
    table = Table()
    for name in ("split", "used as", "rows"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    role_of = {split_name: role for role, split_name in corpus.roles.items()}
    for split_name in corpus.splits:
        if corpus.has(split_name, source, target, version):
            table.add_row(
                split_name,
                role_of.get(split_name, ""),
                _count(corpus.row_count(split_name, source, target, version)),
            )
    console.print(table)
    chosen = split or next(iter(corpus.roles))
    if split is None and any(file.state == "missing" for file in files):
        return
    labels = corpus.pair(source, target) if corpus.is_parallel else row_format_of(corpus.task).columns
    console.print(f"[bold]{corpus.roles.get(chosen, chosen)}[/bold]")
    _rows(console, corpus.rows(chosen, source, target, version), samples, labels)


def _states(console: Console, corpus: NamedCorpus, files: list) -> None:
    """Print one line if all files are complete; otherwise the files that are not."""
    states = {file.state for file in files}
    if states <= {"as named", "same text"}:
        console.print(f"files: {len(files)}, all as the manifest names them")
    elif states == {"missing"}:
        console.print(
            f"files: none of {len(files)} was found; {_how_to_get(corpus)}", markup=False, soft_wrap=True
        )
        console.print("  " + " ".join(file.file for file in files), soft_wrap=True)
    else:
        problems = {
            "missing": "is missing",
            "differs": "differs from the manifest: scores on it do not compare",
        }
        for file in files:
            if file.state in problems:
                console.print(f"  {file.file} {problems[file.state]}", markup=False, soft_wrap=True)


def _how_to_get(corpus: NamedCorpus) -> str:
    """Return the end of the sentence before the file names."""
    from regard.data.download import megabytes
    from regard.errors import for_shell

    if corpus.by_hand:
        return f"{corpus.by_hand}. Put them into the folder above, plain, .gz or .xz:"
    fetch = f"`regard data get {for_shell(corpus.name)}` downloads them ({megabytes(corpus.downloads)})"
    return f"{fetch}, or put them into the folder above, plain, .gz or .xz:"


def _own_files(
    console: Console, names: list[str], source: str | None, target: str | None, samples: int
) -> None:
    from regard.data.column_detection import LABELLED, PAIRS
    from regard.data.reader_choice import JSON, TABLES, has_labels, open_files, open_labelled
    from regard.data.readers import RenamedLabels
    from regard.data.sequence_files import describe_array
    from regard.data.text_files import check_file, suffix
    from regard.errors import DataError

    paths = [Path(name) for name in names]
    for path in paths:
        check_file(path)
    if all(path.suffix == ".npy" for path in paths):
        for path in paths:
            console.print(describe_array(path))
        return
    endings = {suffix(path) for path in paths}
    labels = len(paths) == 1 and has_labels(paths[0], source, target)
    if endings & set(JSON) and source is None and not labels:
        raise DataError(
            f"{paths[0]} needs the fields of the text; name one with --source, or two with --source and "
            "--target"
        )
    paired = (source is not None and target is not None) or bool(endings & set(TABLES))
    paired = paired or (not endings & set(JSON) and len(paths) == 2)
    if labels:
        rows: Rows = RenamedLabels(open_labelled(paths[0], source, target), ())
    else:
        rows = open_files(paths, source, target, paired)
    for note in rows.notes():
        console.print(note, markup=False, soft_wrap=True)
    _rows(console, rows, samples, (LABELLED if labels else PAIRS).roles if rows.paired else ("text",))
    if labels:
        _labels(console, rows)


def _labels(console: Console, rows: Rows) -> None:
    """Print the most frequent labels with their numbers of rows."""
    from collections import Counter
    from itertools import islice

    from regard.data.describe import MAX_ROWS
    from regard.data.text_files import is_unreadable

    counts = Counter(label for _, label in islice(rows, MAX_ROWS) if label and not is_unreadable(label))
    shown = ", ".join(f"{label} {count:,}" for label, count in counts.most_common(20)) + (
        " …" if len(counts) > 20 else ""
    )
    console.print(f"{len(counts):,} label{'s' * (len(counts) != 1)}: {shown}", markup=False, soft_wrap=True)


def _rows(console: Console, rows: Rows, samples: int, labels: tuple[str, ...]) -> None:
    from rich.table import Table

    from regard.data.describe import describe
    from regard.errors import DataError

    description = describe(rows, samples)
    if not description.report.read:
        raise DataError(description.report.no_rows_message(rows))
    more = "" if description.complete else ", not counting the rest"
    console.print(f"{description.report.read:,} rows{more}; " + "; ".join(
        [f"{number:,} {reason}" for reason, number in description.report.dropped().items()] or ["all usable"]
    ))  # fmt: skip
    table = Table()
    for name in ("", "unit", "mean", "median", "95 %", "longest"):
        table.add_column(name, justify="left" if name in ("", "unit") else "right")
    for i, label in enumerate(labels):
        for unit, lengths in (("words", description.words[i]), ("characters", description.characters[i])):
            numbers = (
                f"{lengths.mean:.1f}",
                f"{lengths.median:,}",
                f"{lengths.high:,}",
                f"{lengths.longest:,}",
            )
            table.add_row(label if unit == "words" else "", unit, *numbers)
    console.print(table)
    for row in description.samples:
        console.print(
            "\n".join(f"{label}: {text[:400]}" for label, text in zip(labels, row, strict=True)), markup=False
        )


def _count(rows: int | None) -> str:
    return "–" if rows is None else f"{rows:,}"
