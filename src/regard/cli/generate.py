"""`regard generate`: a language model continues texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import search_options

if TYPE_CHECKING:
    from regard.decoding.strategy import Strategy
    from regard.pipelines.generate_file import GenerateOptions
    from regard.pipelines.input import Source


def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...",
            help="The texts to continue; after -i more files. Else standard input, as one text.",
        ),
    ] = None,
    model: search_options.Model = None,
    files: search_options.Files = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Resumable; .gz, .xz and .jsonl as named.")
    ] = Path("-"),
    column: search_options.Column = None,
    header: search_options.Header = False,
    field: search_options.Field = None,
    length: Annotated[
        int, typer.Option("--length", "--max-length", min=1, help="Maximum number of tokens.")
    ] = 100,
    beam: search_options.Beam = None,
    temperature: search_options.Temperature = None,
    top_k: search_options.TopK = None,
    top_p: search_options.TopP = None,
    min_p: search_options.MinP = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Number of samples for each text.")] = 1,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Seed of sampling; a random one is chosen and printed unless given (0 with -i and -o).",
        ),
    ] = None,
    lines: Annotated[
        bool | None, typer.Option("--lines/--no-lines", help="Go on after the end of a line, or stop there.")
    ] = None,
    forbid: search_options.Forbid = None,
    no_repeat: search_options.NoRepeat = None,
    min_length: search_options.MinLength = None,
    precision: search_options.Precision = "auto",
    device: search_options.Device = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", "--jsonl", help="Write one JSON object for each text.")
    ] = False,
    strict: search_options.Strict = False,
    restart: search_options.Restart = False,
    quiet: search_options.Quiet = False,
) -> None:
    """Continue texts with a language model and print tokens as they are generated.

    Tokens are sampled; --beam searches for the most likely text instead. With -i a line is a text, and what is
    written is one line for each; --json keeps line ends. With -o, rerun the same command to resume an interrupted job.

    Examples:

        regard generate "To be, or" --model runs/shakespeare

        regard generate "ROMEO:" --model runs/shakespeare --seed 1 --count 3 --json

        regard generate -i prompts.txt --model runs/shakespeare -o texts.jsonl
    """
    from regard.cli.text_options import How, check_paths, model_folder, work_through
    from regard.decoding.constraints import Constraints
    from regard.decoding.limits import Limits
    from regard.pipelines.generate_file import GenerateJob, GenerateOptions, load_language_model
    from regard.pipelines.job import fingerprint, open_output
    from regard.training.distributed import pick_device

    search_options.check_text("forbid", *(forbid or ()))
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    sampling = {key: value for key, value in sampling.items() if value is not None}
    job = bool(files) or str(output) != "-"
    settings = GenerateOptions(
        strategy=_strategy(beam, sampling, count, job),
        constraints=Constraints(forbidden=forbid or (), no_repeat=no_repeat or 0, min_length=min_length or 0),
        limits=Limits(max_length=length),
        multiline=lines,
        count=count,
        json=as_json or _named_json(output),
        precision=precision,
        output=str(output),
    )
    folder = model_folder(model, "generate", text or [])
    load = lambda: load_language_model(folder, pick_device(device), precision)  # noqa: E731
    if not job:
        _print(_prompts(text), load, settings, seed is None)
        return
    source = _source(text or [], files, (column, header, field), strict)
    check_paths(source, [output])
    places = [open_output(output)]
    about = lambda: settings.about(fingerprint([folder]))  # noqa: E731
    work_through(source, places, GenerateJob(load(), settings), about, How("generate", restart, quiet))


def _strategy(beam: int | None, sampling: dict[str, Any], count: int, job: bool) -> Strategy:
    """Beam search with --beam, else sampling."""
    from regard.decoding.beam import Beam
    from regard.decoding.sampling import Sample
    from regard.errors import OptionError

    if beam is None:
        options: dict[str, Any] = {"seed": 0 if job else None} | sampling
        return Sample(count=count, **options)
    if sampling:
        name = next(iter(sampling)).replace("_", "-")
        raise OptionError(f"--{name} is about drawing words, which --beam does not; leave out one of them")
    if count > beam:
        raise OptionError(f"--count {count} needs a beam of at least as many; give --beam {count}")
    return Beam(beam)


def _named_json(output: Path) -> bool:
    from regard.data.text_files import suffix

    return suffix(output) in ("jsonl", "ndjson")


def _prompts(texts: list[str] | None) -> list[str]:
    from regard.errors import DataError

    if texts:  # what a shell hands over may be any bytes
        return [text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts]
    if os.isatty(0):
        print("regard: type a text; Ctrl-D ends it", file=sys.stderr)
    try:
        with open(0, "rb", closefd=False) as given:
            return [given.read().decode("utf-8").removesuffix("\n")]
    except OSError as error:
        raise DataError(f"standard input cannot be read: {error.strerror}; give the text as TEXT") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"the text on standard input is not UTF-8 (byte {error.start}); convert it first"
        ) from None


def _print(prompts: list[str], load: Callable[[], Any], settings: GenerateOptions, tell_seed: bool) -> None:
    """Each text with what follows; one sample is shown token by token."""
    from regard.decoding.sampling import Sample
    from regard.pipelines.generate import generate, stream
    from regard.pipelines.generate_file import format_lines

    writer, arguments = load(), settings.arguments()
    try:
        for prompt in prompts:
            if not isinstance(settings.strategy, Sample) or settings.count > 1 or settings.json:
                _write("".join(format_lines(generate(prompt, writer, **arguments), settings)))
                continue
            pieces = stream(prompt, writer, **arguments)
            _write(prompt)
            for piece in pieces:
                _write(piece)
            _write("\n")
    except BrokenPipeError:
        raise typer.Exit(141) from None  # as `cat` ends when nobody reads on
    except KeyboardInterrupt:
        _write("\n")  # what was written stays, as a whole line
        raise typer.Exit(130) from None
    if tell_seed and isinstance(settings.strategy, Sample) and os.isatty(2):
        print(f"regard: drawn with --seed {settings.strategy.seed}", file=sys.stderr)


def _source(
    texts: list[str], files: list[Path] | None, place: tuple[str | None, bool, str | None], strict: bool
) -> Source:
    """Lines of files; else the texts as they are, or standard input as one."""
    from regard.cli.text_options import find_place, find_source
    from regard.pipelines.input import Source

    if not files:
        return Source(texts=tuple(_prompts(texts)))
    column, header, field = place
    found = find_place(texts, files, column, field, header)
    return find_source(texts, files, found.layout, strict, header=found.header)


def _write(text: str) -> None:
    from regard.pipelines.job import Stream, write_errors

    with write_errors("standard output"):
        Stream(1, "standard output").write(text.encode("utf-8", "replace"))
