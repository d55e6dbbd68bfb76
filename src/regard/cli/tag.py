"""`regard tag`: names and other spans in text, files or standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import search_options

if TYPE_CHECKING:
    from regard.pipelines.formats import OutputFormat
    from regard.pipelines.input import Layout
    from regard.pipelines.tag_file import TaggedLine, TagOptions

HELP = """Find the spans a tagger was trained to find, line by line and in order.

What comes in is plain text, which is cut into words; or CoNLL (a word a line), which gets one more column. What comes out is the
text with its spans marked, in colour on a terminal; CoNLL; or JSON lines with the place and type of every span. With -o, rerun the
same command to resume an interrupted job.

  regard tag "Ada Lovelace met Charles Babbage in London." --model runs/wnut17

  regard tag -i tweets.txt --model runs/wnut17 -o spans.jsonl

  regard tag -i test.conll.gz --model runs/wnut17 -o tagged.conll

  regard tag -i test.tsv --conll --column 2 --model runs/wnut17 -o tagged.conll

  zcat tweets.jsonl.gz | regard tag --field text --json --model runs/wnut17 | head
"""
CONLL = ("conll", "iob", "iob2", "bio", "iobes", "conllu")
COLOURS = (36, 33, 35, 32, 34, 31)


def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="What to tag; after -i more files. Else standard input."),
    ] = None,
    model: search_options.Model = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Text, .jsonl or .conll, also .gz or .xz; - is standard input.",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Resumable; .gz, .xz, .conll and .jsonl as named."
        ),
    ] = Path("-"),
    conll: Annotated[
        bool, typer.Option("--conll", help="What comes in is CoNLL, whatever the file is called.")
    ] = False,
    column: Annotated[int, typer.Option(min=1, help="The column of a CoNLL file that holds the words.")] = 1,
    field: search_options.Field = None,
    spaced: Annotated[
        bool, typer.Option("--spaced", help="The text is tokenised: split words at spaces only.")
    ] = False,
    scheme: Annotated[
        str | None, typer.Option(help="Write tags as bio, iobes or io; the model's own unless given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", "--jsonl", help="Write JSON lines.")] = False,
    as_conll: Annotated[bool, typer.Option("--to-conll", help="Write CoNLL.")] = False,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Characters and words per batch.")] = None,
    device: search_options.Device = "auto",
    strict: search_options.Strict = False,
    restart: search_options.Restart = False,
    quiet: search_options.Quiet = False,
) -> None:
    from regard.cli.text_options import How, check_paths, find_source, model_folder, work_through
    from regard.pipelines.job import fingerprint, open_output
    from regard.pipelines.tag_file import TagOptions, check_conll, make_job
    from regard.training.distributed import pick_device

    folder = model_folder(model, "tag", text or [])
    named = [*(files or ()), *map(Path, text or ())] if files else []
    conll = conll or _all(named, CONLL)
    field = field or ("text" if _all(named, ("jsonl", "ndjson")) else None)
    more = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
    settings = TagOptions(
        output_format=_form(output, as_json, as_conll, conll), conll=conll, spaced=spaced, column=column, field=field, scheme=scheme,
        output=str(output), **more,
    )  # fmt: skip
    _fit_together(settings, as_json and as_conll)
    source = find_source(text or [], files, _layout(settings), strict)
    check_paths(source, [output])
    if conll:
        check_conll(source.files, column)
    places = [open_output(output)]
    work = make_job(folder, settings, pick_device(device), _shown(settings))
    work_through(
        source, places, work, lambda: settings.about(fingerprint([folder])), How("tag", restart, quiet)
    )


command.__doc__ = HELP


def _all(files: list[Path], endings: tuple[str, ...]) -> bool:
    from regard.data.text_files import suffix

    return bool(files) and all(suffix(path) in endings for path in files)


def _form(output: Path, as_json: bool, as_conll: bool, conll: bool) -> str:
    from regard.data.text_files import suffix

    kind = suffix(output)
    if as_json or (kind in ("jsonl", "ndjson") and not as_conll):
        return "json"
    return "conll" if as_conll or conll or kind in CONLL else "text"


def _fit_together(settings: TagOptions, both: bool) -> None:
    """Stop in one sentence at options that exclude each other."""
    from regard.data.tag_schemes import scheme
    from regard.errors import OptionError

    if both:
        raise OptionError("--json and --to-conll are two ways to write the same; give one of them")
    if settings.conll and settings.field is not None:
        raise OptionError("--conll is for words line by line and --field for JSON lines; give one of them")
    if settings.conll and settings.spaced:
        raise OptionError("--spaced is about plain text, and the words of CoNLL stand in lines; leave it out")
    if settings.column != 1 and not settings.conll:
        raise OptionError("--column is about CoNLL files; add --conll, or leave it out")
    if settings.scheme is not None:
        scheme(settings.scheme)
        if settings.output_format == "text":
            raise OptionError("--scheme is about written tags; write CoNLL or JSON, or leave it out")


def _layout(settings: TagOptions) -> Layout:
    from regard.pipelines.input import Field, Sentences, WholeLine

    return Sentences() if settings.conll else WholeLine() if settings.field is None else Field(settings.field)


def _shown(settings: TagOptions) -> OutputFormat[TaggedLine] | None:
    """Spans in colour, a colour for each type, where a terminal shows it."""
    from regard.cli.weight_matrix import shows_color
    from regard.pipelines.tag_file import Marked

    if settings.output_format != "text" or settings.output != "-" or not shows_color(sys.stdout):
        return None
    known: dict[str, int] = {}

    def mark(text: str, kind: str) -> str:
        colour = COLOURS[known.setdefault(kind, len(known)) % len(COLOURS)]
        return f"\x1b[1;4;{colour}m{text}\x1b[0m\x1b[{colour}m {kind}\x1b[0m"

    return Marked(mark)
