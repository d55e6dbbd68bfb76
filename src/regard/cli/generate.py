"""`regard generate`: continue texts with a language model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import option_groups as shared
from regard.cli.option_groups import SEARCH, grouped, option

if TYPE_CHECKING:
    from regard.decoding.strategy import Strategy
    from regard.pipelines.generate_file import GenerateOptions


Prompts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT",
        help="Prompts; after -i, more files. Default: standard input, as one prompt.",
    ),
]


@dataclass(frozen=True)
class GenerateSamplingOptions(shared.SamplingOptions):
    """Sampling with a random seed on the terminal."""

    seed: Annotated[
        int | None,
        option(
            min=0,
            help="Seed of sampling; default: 0 with -i or -o, otherwise random and printed.",
            rich_help_panel=SEARCH,
        ),
    ] = None


@dataclass(frozen=True)
class GenerationOptions(shared.OptionGroup):
    """How many continuations, and where they end."""

    beam: shared.BeamSize = None
    count: Annotated[
        int, option(min=1, max=10_000, help="Continuations per prompt.", rich_help_panel=SEARCH)
    ] = 1
    length: Annotated[
        int,
        option("--length", "--max-length", min=1, help="Maximum number of tokens.", rich_help_panel=SEARCH),
    ] = 100
    lines: Annotated[
        bool | None,
        option(
            "--lines/--no-lines",
            help="Continue after the end of a line, or stop there.",
            rich_help_panel=SEARCH,
        ),
    ] = None


@grouped
def command(
    text: Prompts = None,
    *,
    model: shared.Model = None,
    input: shared.InputFileOptions,
    generation: GenerationOptions,
    sampling: GenerateSamplingOptions,
    constraints: shared.ConstraintOptions,
    output: Annotated[Path, shared.output_option(".txt or .jsonl, also .gz or .xz")] = Path("-"),
    as_json: shared.Json = False,
    picture: shared.PictureOptions,
    precision: shared.Precision = "auto",
    job: shared.JobOptions,
) -> None:
    """Continue texts with a language model and print tokens as they are generated.

    Tokens are sampled; --beam searches for the most likely text instead. With -i, every line is a prompt and
    every output is one line; --json keeps line breaks. With -o, rerun the same command to resume an
    interrupted job.

    Examples:

        regard generate "To be, or"

        regard generate "ROMEO:" --model runs/shakespeare --count 3 --json

        regard generate "To be, or" --length 8 --picture be.html --layer 2

        regard generate -i prompts.txt --model runs/shakespeare -o texts.jsonl
    """
    from regard.attention.devices import pick_device
    from regard.cli import pictures
    from regard.cli.jobs import model_folder, open_input, open_outputs, output_format, run_job
    from regard.decoding.limits import Limits
    from regard.pipelines.generate_file import GenerateJob, GenerateOptions, load_language_model
    from regard.pipelines.input import Source
    from regard.pipelines.job import fingerprint

    interactive = not input.files and str(output) == "-"
    if pictures.check_options(picture, text or [] if interactive else None):
        pictures.check_count(str(picture.picture), len(text or []))
    options = GenerateOptions(
        strategy=_strategy(generation, sampling, seed=None if interactive else 0),
        constraints=constraints.constraints(),
        limits=Limits(max_length=generation.length),
        multiline=generation.lines,
        count=generation.count,
        json=output_format(output, as_json) == "json",
        precision=precision,
        output=str(output),
    )
    folder = model_folder(model, "generate", text or [])
    source = Source(texts=tuple(_prompts(text))) if not input.files else open_input(text or [], input)[0]
    output_files = open_outputs(source, [output])
    language_model = load_language_model(folder, pick_device(job.device), precision)
    if interactive:
        _print_all(list(source.texts), language_model, options, picture, sampling.seed is None)
        return
    settings = lambda: options.about(fingerprint([folder]))  # noqa: E731
    run_job("generate", source, output_files, GenerateJob(language_model, options), settings, job)


def _strategy(generation: GenerationOptions, sampling: GenerateSamplingOptions, seed: int | None) -> Strategy:
    """Return beam search with --beam, otherwise sampling."""
    from regard.decoding.beam import Beam
    from regard.errors import OptionError

    beam, count = generation.beam, generation.count
    if beam is None:
        return sampling.sample(count, seed)
    if sampling.given:
        raise OptionError(f"{sampling.first_given} is for sampling, and --beam does not sample; give one")
    if count > beam:
        raise OptionError(f"--count {count} needs a beam of at least {count}; give --beam {count}")
    return Beam(beam)


def _prompts(texts: list[str] | None) -> list[str]:
    """Return the texts, or standard input as one text."""
    from regard.cli.jobs import report
    from regard.errors import DataError

    if texts:  # a shell passes on any bytes
        return [text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for text in texts]
    if os.isatty(0):
        report("type a text; Ctrl-D ends it")
    try:
        with open(0, "rb", closefd=False) as file:
            return [file.read().decode("utf-8").removesuffix("\n")]
    except OSError as error:
        raise DataError(f"standard input cannot be read: {error.strerror}; give the text as TEXT") from None
    except UnicodeDecodeError as error:
        raise DataError(
            f"the text on standard input is not UTF-8 (byte {error.start}); convert it first"
        ) from None


def _check_picture(picture: shared.PictureOptions, model: Any) -> list[Any] | None:
    """With --picture, check its options with the model, and return the list that the maps will be in."""
    from regard.cli import pictures
    from regard.data.tokenizer import EOS
    from regard.decoding.attention_weights import attention_maps
    from regard.decoding.search import torch_model

    if picture.picture is None:
        return None
    pictures.check_model(picture, attention_maps(None, [[EOS]], torch_model(model))[0])
    return []


def _print_all(
    prompts: list[str],
    model: Any,
    options: GenerateOptions,
    picture: shared.PictureOptions,
    report_seed: bool,
) -> None:
    """Print the prompts with their continuations, and draw their attention with --picture."""
    from regard.cli import pictures

    attention = _check_picture(picture, model)
    _print(prompts, model, options, attention, report_seed)
    if attention is not None:
        pictures.save(picture, attention)


def _print(
    prompts: list[str], model: Any, options: GenerateOptions, attention: list[Any] | None, report_seed: bool
) -> None:
    """Print each prompt with its continuation; a single sample is printed token by token.

    With a list for the attention maps, those of each prompt are added to it.
    """
    from regard.cli.jobs import report
    from regard.decoding.sampling import Sample
    from regard.pipelines.generate import generate, stream
    from regard.pipelines.generate_file import format_lines

    arguments, strategy = options.arguments(), options.strategy
    try:
        for prompt in prompts:
            if not isinstance(strategy, Sample) or options.count > 1 or options.json or attention is not None:
                generation = generate(prompt, model, attention=attention is not None, **arguments)
                _write("".join(format_lines(generation, options)))
                if attention is not None:
                    attention.append(generation.attention)
                continue
            pieces = stream(prompt, model, **arguments)
            _write(prompt)
            for piece in pieces:
                _write(piece)
            _write("\n")
    except BrokenPipeError:
        raise typer.Exit(141) from None  # like `cat` when its reader is gone
    except KeyboardInterrupt:
        _write("\n")  # ends the line
        raise typer.Exit(130) from None
    if report_seed and isinstance(strategy, Sample) and os.isatty(2):
        report(f"sampled with --seed {strategy.seed}")


def _write(text: str) -> None:
    from regard.pipelines.job import Stream, convert_write_errors

    with convert_write_errors("standard output"):
        Stream(1, "standard output").write(text.encode("utf-8", "replace"))
