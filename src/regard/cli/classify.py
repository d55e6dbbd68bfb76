"""`regard classify`: labels for text, files or standard input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import search_options

if TYPE_CHECKING:
    from regard.pipelines.classify_file import ClassifyOptions, OutputFormat, Result
    from regard.pipelines.input import Layout, Source

HELP = """Label text, files or standard input, line by line and in order, with probabilities.

With -o, rerun the same command to resume an interrupted job.

  regard classify runs/sst2 "a film to remember"

  regard classify runs/sst2-attention --attention "a film to remember"    # a model with attention

  regard classify runs/sst2 -i reviews.csv --column review -o labelled.csv

  regard classify runs/trec -i questions.jsonl --field question --top 3 -o labelled.jsonl

  zcat big.gz | regard classify runs/sst2 | cut -f 1 | sort | uniq -c
"""


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a classifier or its run.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="What to label; after -i more files. Else standard input."),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Text, .tsv, .csv or .jsonl, also .gz or .xz; - is standard input.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Resumable; .gz, .xz, .tsv, .csv and .jsonl as named."
        ),
    ] = Path("-"),
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|N", help="The column of a table: its number, or its name in the first line."
        ),
    ] = None,
    header: Annotated[
        bool, typer.Option("--header", help="The first line of a table names its columns.")
    ] = False,
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="The field of JSON lines; text unless given.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Write the N most likely labels.")] = 1,
    threshold: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Leave the label empty where its probability is lower than this."
        ),
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--jsonl", "--json", help="Write JSON lines.")] = False,
    attention: Annotated[
        bool,
        typer.Option(
            "--attention", help="Show the attention weight of each word; the model needs attention."
        ),
    ] = False,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per batch.")] = None,
    device: search_options.Device = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at a line that is not UTF-8.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start over instead of resuming from FILE.part.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    from regard.cli.text_options import How, check_paths, find_source, say, work_through
    from regard.pipelines.classify_file import ClassifyOptions, make_job
    from regard.pipelines.output import output as place
    from regard.pipelines.translate_file import fingerprint
    from regard.training.distributed import pick_device

    named = [*(files or ()), *map(Path, text or ())] if files else [] if text else [Path("-")]
    layout, names = _layout(named, column, header, field)
    source = find_source(text or [], files, layout, strict, header=bool(names))
    more = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
    settings = ClassifyOptions(
        top=top, threshold=threshold, form=_form(output, as_json), column=column, field=field, attention=attention,
        output=str(output), **more,
    )  # fmt: skip
    check_paths(source, [output])
    form = _fitting(settings, source, layout, names)
    places = [place(output)]
    work = make_job(model, settings, form, pick_device(device))
    work_through(
        source, places, work, lambda: settings.about(fingerprint([model])), How("classify", restart, quiet)
    )
    if work.cut:
        many = "1 text was" if work.cut == 1 else f"{work.cut:,} texts were"
        say(f"{many} longer than the model's table of positions and labelled by their beginning")


command.__doc__ = HELP


def _layout(
    files: list[Path], column: str | None, header: bool, field: str | None
) -> tuple[Layout, list[str]]:
    """Where in a line the text is, and the names of the columns where the first line is no text but names them."""
    from regard.data.text_files import suffix
    from regard.errors import OptionError
    from regard.pipelines.input import Column, Csv, Field, WholeLine

    if column is not None and field is not None:
        raise OptionError("--column is for tables and --field for JSON lines; give one of them")
    kinds = sorted({suffix(path) for path in files})
    if len(kinds) > 1 and {"tsv", "csv", "jsonl", "ndjson"} & set(kinds):
        shown = ", ".join(f".{each}" if each else "without ending" for each in kinds)
        raise OptionError(
            f"files of different kinds ({shown}) hold their texts in different places; label them one by one"
        )
    kind = kinds[0] if len(kinds) == 1 else ""
    if column is None and kind in ("jsonl", "ndjson"):
        return Field(field or "text"), []
    if field is not None or (column is None and kind not in ("tsv", "csv")):
        return (WholeLine() if field is None else Field(field)), []
    firsts = [_named(path) for path in files]
    number, named = _number(files, firsts, column)
    layout = Csv(number) if kind == "csv" else Column(number)
    return layout, (firsts[0] or []) if header or named else []


def _named(path: Path) -> list[str] | None:
    """The cells of the first line; None of what cannot be read twice."""
    from regard.data.table_readers import first_cells

    return first_cells(path) if path.is_file() and path.stat().st_size else None


def _number(files: list[Path], firsts: list[list[str] | None], column: str | None) -> tuple[int, bool]:
    """Which column it is, counted from 1, and whether it was found by its name."""
    from regard.errors import DataError, OptionError

    if column is not None and column.isdigit():
        if int(column) < 1:
            raise OptionError(f"columns are counted from 1, got --column {column}")
        return int(column), False
    name, found = column or "text", set()
    for path, first in zip(files, firsts, strict=True):
        if first is None:
            raise OptionError(
                f"{path} is not a file that can be looked into first, so its column needs a number; give --column N"
            )
        if name not in first:
            shown = ", ".join(repr(cell[:30]) for cell in first[:8])
            raise DataError(
                f"line 1 of {path} names no column {name!r}; it has {shown}: give one of them, or a number, as --column"
            )
        found.add(first.index(name) + 1)
    if len(found) > 1:
        raise DataError(
            f"the column {name!r} stands at different places in these files; label them one by one"
        )
    return found.pop(), True


def _form(output: Path, as_json: bool) -> str:
    from regard.data.text_files import suffix

    return (
        "json"
        if as_json
        else {"jsonl": "json", "ndjson": "json", "tsv": "table", "csv": "csv"}.get(suffix(output), "text")
    )


def _fitting(settings: ClassifyOptions, source: Source, layout: Layout, names: list[str]) -> OutputFormat:
    """The form of the answers, or one sentence about options that exclude each other."""
    from regard.cli.weight_matrix import shows_color
    from regard.errors import OptionError
    from regard.pipelines.classify_file import make_format

    if settings.attention and settings.form != "json":
        if settings.output != "-" or settings.form != "text":
            raise OptionError(
                "--attention is shown on the terminal or written as JSON; leave out -o, or add --jsonl"
            )
        return Shown(settings.top, shows_color(sys.stdout))
    return make_format(settings, layout, names)


@dataclass(frozen=True)
class Shown:
    """The labels, and below them every word with its weight; the more it got, the warmer its colour."""

    top: int
    color: bool

    def begin(self) -> str:
        return ""

    def write(self, answer: Result) -> str:
        from regard.pipelines.classify_file import Text

        line = Text(self.top).write(answer)
        looked = answer.looked
        if looked is None or not looked.words or not answer.found.probabilities:
            return line
        most = max(looked.weights) or 1.0
        words = [
            self._word(word, weight, weight / most)
            for word, weight in zip(looked.words, looked.weights, strict=True)
        ]
        return f"{line}  {' '.join(words)}\n"

    def _word(self, word: str, weight: float, share: float) -> str:
        from regard.cli.weight_matrix import COLOURS, plain

        colour = COLOURS[min(int(share * len(COLOURS)), len(COLOURS) - 1)]
        shown = f"{plain(word)}({weight:.2f})"
        return f"\x1b[{colour}m{shown}\x1b[0m" if self.color and colour else shown
