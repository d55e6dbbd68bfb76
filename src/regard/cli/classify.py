"""`regard classify`: labels for text, files or standard input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import search_options

if TYPE_CHECKING:
    from regard.pipelines.classify_file import ClassifiedLine, ClassifyOptions
    from regard.pipelines.formats import OutputFormat
    from regard.pipelines.table import Place

HELP = """Label text, files or standard input, line by line and in order, with probabilities.

With -o, rerun the same command to resume an interrupted job.

  regard classify "a film to remember" --model runs/sst2

  regard classify "a film to remember" --attention --model runs/sst2-attention    # a model with attention

  regard classify -i reviews.csv --column review --model runs/sst2 -o labelled.csv

  regard classify -i questions.jsonl --field question --model runs/trec --top 3 -o labelled.jsonl

  zcat big.gz | regard classify --model runs/sst2 | cut -f 1 | sort | uniq -c
"""


def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="What to label; after -i more files. Else standard input."),
    ] = None,
    model: search_options.Model = None,
    files: search_options.Files = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Resumable; .gz, .xz, .tsv, .csv and .jsonl as named."
        ),
    ] = Path("-"),
    column: search_options.Column = None,
    header: search_options.Header = False,
    field: search_options.Field = None,
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
    strict: search_options.Strict = False,
    restart: search_options.Restart = False,
    quiet: search_options.Quiet = False,
) -> None:
    from regard.cli.text_options import (
        How,
        check_paths,
        find_place,
        find_source,
        model_folder,
        say,
        work_through,
    )
    from regard.pipelines.classify_file import ClassifyOptions, make_job
    from regard.pipelines.job import fingerprint, open_output
    from regard.training.distributed import pick_device

    folder = model_folder(model, "classify", text or [])
    place = find_place(text or [], files, column, field, header)
    source = find_source(text or [], files, place.layout, strict, header=place.header)
    more = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
    settings = ClassifyOptions(
        top=top, threshold=threshold, output_format=_form(output, as_json), column=column, field=field, attention=attention,
        output=str(output), **more,
    )  # fmt: skip
    check_paths(source, [output])
    form = _fitting(settings, place)
    places = [open_output(output)]
    work = make_job(folder, settings, form, pick_device(device))
    work_through(
        source, places, work, lambda: settings.about(fingerprint([folder])), How("classify", restart, quiet)
    )
    if work.truncated:
        many = "1 text was" if work.truncated == 1 else f"{work.truncated:,} texts were"
        say(f"{many} longer than the model's table of positions and labelled by their beginning")


command.__doc__ = HELP


def _form(output: Path, as_json: bool) -> str:
    from regard.data.text_files import suffix

    return (
        "json"
        if as_json
        else {"jsonl": "json", "ndjson": "json", "tsv": "table", "csv": "csv"}.get(suffix(output), "text")
    )


def _fitting(settings: ClassifyOptions, place: Place) -> OutputFormat[ClassifiedLine]:
    """The form of the answers, or one sentence about options that exclude each other."""
    from regard.cli.weight_matrix import shows_color
    from regard.errors import OptionError
    from regard.pipelines.classify_file import make_format

    if settings.attention and settings.output_format != "json":
        if settings.output != "-" or settings.output_format != "text":
            raise OptionError(
                "--attention is shown on the terminal or written as JSON; leave out -o, or add --jsonl"
            )
        return Shown(settings.top, shows_color(sys.stdout))
    return make_format(settings, place.layout, place.names)


@dataclass(frozen=True)
class Shown:
    """The labels, and below them every word with its weight; the more it got, the warmer its colour."""

    top: int
    color: bool

    def header(self) -> str:
        return ""

    def write(self, result: ClassifiedLine) -> str:
        from regard.pipelines.classify_file import Text

        line = Text(self.top).write(result)
        looked = result.attention
        if looked is None or not looked.words or not result.classification.probabilities:
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
