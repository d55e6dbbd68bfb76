"""Jobs over lines of text: input from text, files or standard input; output in order; resumable."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from regard.cli.option_groups import InputFileOptions, JobOptions
    from regard.pipelines.input import Layout, Source
    from regard.pipelines.job import Distribute, File, Outputs, Stream, Work
    from regard.pipelines.table import TextLocation


def report(message: str) -> None:
    """Print a message to standard error."""
    print(f"regard: {message}", file=sys.stderr, flush=True)


def model_folder(model: Path | None, task: str, texts: Sequence[str], to: str | None = None) -> Path:
    """Return the folder of --model, or the default model of the task.

    A model folder in place of the first text is an error that prints the right command.
    """
    from regard.errors import OptionError
    from regard.models.default import default_model
    from regard.models.folder import is_file

    first = texts[0] if texts else ""
    if first and any(is_file(Path(first) / name) for name in ("config.json", "model/config.json")):
        arguments = sys.argv[1:]
        if first in arguments:
            arguments.remove(first)
        if task == "align" and len(texts) > 1 and is_file(Path(texts[1])):
            arguments.insert(arguments.index(texts[1]), "-i")
        named = [] if model is not None else ["--model", first]
        raise OptionError(
            f"{first} is a model folder, and a text is expected here; name the model with --model: "
            f"{shlex.join(['regard', *arguments, *named])}"
        )
    return default_model(task, to) if model is None else model


def open_input(
    texts: Sequence[str], options: InputFileOptions, model: Path | None = None
) -> tuple[Source, TextLocation]:
    """Return the input lines and where the text is in them; assumptions about a table are reported.

    If the model reads sequences of numbers, the texts are names of files.
    """
    from regard.pipelines import table
    from regard.pipelines.input import Source
    from regard.pipelines.sequence_input import open_sequences, reads_sequences

    if model is not None and reads_sequences(model):
        return open_sequences(
            texts, options.files, options.column, options.field, header=options.header, strict=options.strict
        )
    paths = [*options.files, *map(Path, texts)] if options.files else [] if texts else [Path("-")]
    if options.column is not None and not paths:
        paths = [Path("-")]  # the texts are rows with tabs
    Source(tuple(paths)).check()
    location = table.locate_text(paths, options.column, options.field, options.header)
    if location.note:
        report(location.note)
    return make_source(
        texts, options.files, location.layout, options.strict, header=location.header
    ), location


def make_source(
    texts: Sequence[str],
    files: Sequence[Path] | None,
    layout: Layout,
    strict: bool = False,
    header: bool = False,
) -> Source:
    """Return the input: with -i, arguments are more files; otherwise they are texts; else standard input."""
    from regard.pipelines.input import Source

    if files:
        source = Source((*files, *map(Path, texts)), layout=layout, strict=strict, header=header)
    elif texts:
        for text in texts:
            if len(text) < 256 and Path(text).is_file():
                report(f"{text} is read as a text; add -i to read the file of that name")
        lines = tuple(line for text in texts for line in text.split("\n"))
        source = Source(texts=lines, layout=layout, strict=strict)
    else:
        source = Source((Path("-"),), layout=layout, strict=strict, header=header)
    source.check()
    return source


def open_outputs(source: Source, paths: Sequence[str | Path]) -> list[Stream | File]:
    """Return the outputs; `-` is standard output. A file that is also input, or named twice, is an error."""
    from regard.cli.option_groups import check_outputs
    from regard.errors import OptionError
    from regard.pipelines.job import open_output

    outputs = [Path(path).resolve() for path in paths if str(path) != "-"]
    if len(set(outputs)) < len(outputs):
        raise OptionError("two outputs have the same file; name another file for one of them")
    check_outputs(*map(Path, paths), inputs=source.files)
    return [open_output(Path(path)) for path in paths]


def output_format(output: Path, as_json: bool) -> str:
    """Return json, table, csv or text, by --json and the file name."""
    from regard.data.text_files import suffix

    formats = {"jsonl": "json", "ndjson": "json", "tsv": "table", "csv": "csv"}
    return "json" if as_json else formats.get(suffix(output), "text")


def run_job(
    name: str,
    source: Source,
    output_files: Sequence[Stream | File],
    job: Work,
    settings: Callable[[], dict[str, Any]],
    options: JobOptions,
    cluster: Callable[[], Distribute] | None = None,
) -> None:
    """Run what remains of a job and write its outputs.

    Args:
        name: of the progress bar.
        output_files: outputs, from `open_outputs`.
        settings: called for a resumable job: what the output depends on, compared with the interrupted job.
        cluster: runs the chunks on other machines.
    """
    from regard.pipelines import job as pipeline
    from regard.pipelines.job import File, Outputs

    total, invalid = source.count_lines() if source.rereadable else (None, None)
    outputs = Outputs(output_files, settings() if isinstance(output_files[0], File) else {}, options.restart)
    if outputs.lines:
        report(f"resuming after {outputs.lines:,} lines")
    typed, terminal = os.isatty(0), os.isatty(2)  # False if closed
    if not source.rereadable and typed:
        report("type a sentence and press Enter; Ctrl-D ends")
    progress = not options.quiet and (total is not None or (terminal and not typed))
    try:
        reader = pipeline.run_job(
            source, outputs, job, total, name=name, progress=progress, distribute=cluster and cluster()
        )
    except BrokenPipeError:
        raise typer.Exit(141) from None  # like `cat` when its reader is gone
    except KeyboardInterrupt:
        report(_interrupted(outputs))
        raise typer.Exit(130) from None
    invalid = invalid or reader.invalid
    if invalid.count:
        report(str(invalid))


def _interrupted(outputs: Outputs) -> str:
    if not outputs.resumable:
        return f"stopped after {outputs.lines:,} lines"
    command = shlex.join(["regard", *(argument for argument in sys.argv[1:] if argument != "--restart")])
    return f"stopped after {outputs.lines:,} lines, which are kept; resume with: {command}"
