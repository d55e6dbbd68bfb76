"""`regard translate`: translate text, files or standard input."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import option_groups as shared
from regard.cli.option_groups import JOB, OUTPUT, SEARCH, grouped, option

if TYPE_CHECKING:
    from regard.decoding.constraints import Constraints
    from regard.decoding.limits import Limits
    from regard.decoding.strategy import Strategy
    from regard.pipelines.input import Source
    from regard.pipelines.table import TextLocation
    from regard.pipelines.translate_file import TranslateJob, TranslateOptions
    from regard.pipelines.translation_formats import TranslatedLine


@dataclass(frozen=True)
class SearchOptions(shared.BeamOptions):
    """Beam search, or sampling with --sample."""

    nbest: Annotated[
        int,
        option(
            min=1,
            metavar="N",
            help="Write the N best as `line ||| text ||| score`.",
            rich_help_panel=SEARCH,
        ),
    ] = 1
    sample: Annotated[
        bool, option("--sample", help="Sample instead of beam search.", rich_help_panel=SEARCH)
    ] = False
    max_length: Annotated[
        int | None,
        option(
            min=1,
            help="Maximum number of tokens; default: 1.5 · source length + 20.",
            rich_help_panel=SEARCH,
        ),
    ] = None


@dataclass(frozen=True)
class RequiredOptions(shared.ConstraintOptions):
    """Constraints, with phrases that must occur."""

    require: Annotated[
        list[str] | None,
        option(metavar="TEXT", help="Phrase that must occur; repeatable.", rich_help_panel=SEARCH),
    ] = None
    prefix: Annotated[
        str, option(metavar="TEXT", help="Every translation begins with this.", rich_help_panel=SEARCH)
    ] = ""

    def all(self) -> Constraints:
        """Return the constraints, with prefix and required phrases."""
        shared.check_utf8("prefix", self.prefix)
        shared.check_utf8("require", *(self.require or ()))
        return self.constraints(self.prefix, self.require)


@dataclass(frozen=True)
class TranslateOutputOptions(shared.OptionGroup):
    """What is written, and where."""

    output: Annotated[Path, shared.output_option(".txt, .tsv, .csv or .jsonl, also .gz or .xz")] = Path("-")
    as_json: shared.Json = False
    align: Annotated[
        bool,
        option("--align", help="Append the word alignment (0-0 1-2) after a tab.", rich_help_panel=OUTPUT),
    ] = False
    align_to: Annotated[
        Path | None,
        option(metavar="FILE", help="Write word alignments to this file.", rich_help_panel=OUTPUT),
    ] = None
    attention: Annotated[
        Path | None,
        option(metavar="FILE", help="Write all attention to a .jsonl or .npz file.", rich_help_panel=OUTPUT),
    ] = None
    show: Annotated[
        bool,
        option("--show", help="Draw the attention between words on the terminal.", rich_help_panel=OUTPUT),
    ] = False


@dataclass(frozen=True)
class EngineOptions(shared.JobOptions):
    """How the job runs."""

    precision: shared.Precision = "auto"
    shortlist: shared.Shortlist = False
    no_split: Annotated[
        bool,
        option(
            "--no-split",
            help="Do not split long lines, nor lines of several sentences.",
            rich_help_panel=JOB,
        ),
    ] = False
    batch_tokens: shared.BatchTokens = None
    workers: Annotated[
        int | None, option(min=1, help="Batches computed in parallel.", rich_help_panel=JOB)
    ] = None
    on: Annotated[str | None, option(metavar="ray", help="Run on a Ray cluster.", rich_help_panel=JOB)] = None

    def limits(self, max_length: int | None) -> Limits:
        from regard.decoding.limits import Limits

        return Limits(max_length, self.batch_tokens, self.workers)


@grouped
def command(
    text: shared.Texts = None,
    *,
    model: shared.Model = None,
    ensemble: shared.Ensemble = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="LANGUAGE", help="Target language, such as de.")
    ] = None,
    input: shared.InputFileOptions,
    search: SearchOptions,
    sampling: shared.SamplingOptions,
    constraints: RequiredOptions,
    output: TranslateOutputOptions,
    picture: shared.PictureOptions,
    engine: EngineOptions,
) -> None:
    """Translate text, files or standard input, line by line and in order.

    With -o, rerun the same command to resume an interrupted job; the output is byte-identical.

    Examples:

        regard translate "Where is the station?" --to de --show

        regard translate "Where is my book?" --to fr --picture book.svg

        regard translate -i sentences.txt --model runs/small -o translations.txt

        regard translate -i reviews.csv --column review --to de -o german.csv

        zcat big.gz | regard translate --to de --beam 1 | gzip > german.gz
    """
    from regard.cli import pictures
    from regard.cli.jobs import model_folder, open_input, output_format
    from regard.pipelines.translate_file import TranslateOptions

    drawn = pictures.check_options(picture, None if input.files else text or [])
    models = [model_folder(model, "translate", text or [], to), *(ensemble or [])]
    source, location = open_input(text or [], input, models[0])
    options = TranslateOptions(
        strategy=_strategy(search, sampling, models[0]),
        constraints=constraints.all(),
        limits=engine.limits(search.max_length),
        nbest=search.nbest,
        to=to,
        split=not engine.no_split,
        output_format=output_format(output.output, output.as_json),
        column=input.column,
        align=output.align or output.show or output.align_to is not None,
        alignment_file=str(output.align_to or ""),
        attention_file=str(output.attention or ""),
        output=str(output.output),
        precision=engine.precision,
        shortlist=engine.shortlist,
        **_layout(location),
    )
    _run(models, source, options, output.show, engine, picture if drawn else None)


def _strategy(search: SearchOptions, sampling: shared.SamplingOptions, model: Path) -> Strategy:
    from regard.errors import OptionError

    if search.sample and search.beam is not None:
        raise OptionError("--sample and --beam exclude each other; give one of them")
    if not search.sample and sampling.given:
        name = sampling.first_given
        raise OptionError(f"{name} has an effect only with --sample; add it, or leave {name} out")
    return sampling.sample(search.nbest, seed=0) if search.sample else search.strategy(model)


def _layout(location: TextLocation) -> dict[str, Any]:
    """The options that describe the layout of the input lines."""
    from regard.pipelines.input import Column, Field

    layout = location.layout
    return {
        "field": layout.name if isinstance(layout, Field) else None,
        "separator": layout.separator if isinstance(layout, Column) else None,
        "quotes": isinstance(layout, Column) and layout.quotes,
        "names": location.names,
    }


def _check(options: TranslateOptions, show: bool, on: str | None) -> None:
    """Raise OptionError for options that exclude each other."""
    from regard.decoding.beam import Beam
    from regard.errors import OptionError
    from regard.pipelines.attention_file import check_attention_path

    nbest = options.nbest
    if isinstance(options.strategy, Beam) and nbest > options.strategy.size:
        raise OptionError(f"--nbest {nbest} needs a beam of at least {nbest}; add --beam {nbest}")
    beside = options.align and not options.alignment_file and not show
    if options.output_format == "text" and nbest > 1 and beside:
        raise OptionError("--nbest lines have no room for --align; use --align-to FILE, or --json")
    if options.output_format in ("table", "csv") and nbest > 1:
        raise OptionError(
            f"a table has one translation for each row, so leave out --nbest {nbest}, or use --json"
        )
    if show and (options.output != "-" or options.output_format == "json" or on):
        raise OptionError("--show draws on the terminal; leave out -o, --json and --on, or --show")
    if on not in (None, "ray"):
        raise OptionError(f"--on must be ray, got {on!r}")
    if options.attention_file:
        check_attention_path(options.attention_file)


def _run(
    models: list[Path],
    source: Source,
    options: TranslateOptions,
    show: bool,
    engine: EngineOptions,
    picture: shared.PictureOptions | None,
) -> None:
    from regard.attention.devices import pick_device
    from regard.cli.jobs import open_outputs, run_job
    from regard.errors import OptionError
    from regard.pipelines.job import fingerprint
    from regard.pipelines.translate_file import make_job

    _check(options, show, engine.on)
    output_files, device = open_outputs(source, options.paths), pick_device(engine.device)
    if picture is not None and (engine.on or len(models) > 1):
        raise OptionError("--picture draws the attention of one model here; leave out --with and --on")
    job = make_job(models, options, device, AttentionDrawing() if show else None)
    results = _collect(job, picture)

    def settings() -> dict[str, Any]:
        return options.about(fingerprint(models, options.shortlist))

    def ray() -> Any:
        from regard.pipelines.ray import run_on_ray

        return run_on_ray(models, options, device.type)

    run_job("translate", source, output_files, job, settings, engine, ray if engine.on == "ray" else None)
    if picture is not None:
        _draw(job, results, picture)


def _collect(job: TranslateJob, picture: shared.PictureOptions | None) -> list[TranslatedLine]:
    """With --picture, check its options with the model, and return the list that the results will be in."""
    from regard.cli import pictures
    from regard.data.tokenizer import EOS
    from regard.decoding.attention_weights import attention_maps

    results: list[TranslatedLine] = []
    if picture is not None:
        tokenizer: Any = job.model.source_tokenizer
        (probe,) = attention_maps([tokenizer.encode(tokenizer.example)], [[EOS]], job.model)
        pictures.check_model(picture, probe)
        job.on_results = results.extend
    return results


def _draw(job: TranslateJob, results: list[TranslatedLine], picture: shared.PictureOptions) -> None:
    """Draw the attention of the best translation of every line; a long line is drawn in its pieces."""
    from regard.cli import pictures
    from regard.decoding.attention_weights import attention_maps

    parts = [part for result in results for part in result.translations if part.hypotheses]
    sources = [part.source_tokens for part in parts]
    targets = [part.hypotheses[0].all_tokens for part in parts]
    pictures.check_count(str(picture.picture), len(parts))
    pictures.save(picture, attention_maps(sources, targets, job.model) if parts else [])


@dataclass(frozen=True)
class AttentionDrawing:
    """An output format: the translation, and below it the attention between its words and the source's."""

    def header(self) -> str:
        return ""

    def write(self, result: TranslatedLine) -> str:
        from regard.cli.weight_matrix import render

        drawings = [
            render(alignment.weights, alignment.source_words, alignment.target_words)
            for alignment in result.alignments
            if alignment.target_words
        ]
        return "\n".join([result.text, *drawings, ""]) + "\n" * bool(drawings)
