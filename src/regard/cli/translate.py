"""`regard translate`: text, files or standard input, translated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import search_options

if TYPE_CHECKING:
    from regard.decoding.strategy import Strategy
    from regard.pipelines.input import Source
    from regard.pipelines.translate_file import TranslateOptions
    from regard.pipelines.translation_formats import TranslatedLine


def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="What to translate; after -i more files. Else standard input."
        ),
    ] = None,
    model: search_options.Model = None,
    to: search_options.To = None,
    files: search_options.Files = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Resumable; .gz, .xz, .tsv, .csv and .jsonl as named."
        ),
    ] = Path("-"),
    together: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="MODEL", help="Another model, for an ensemble; repeatable."),
    ] = None,
    column: search_options.Column = None,
    header: search_options.Header = False,
    field: search_options.Field = None,
    beam: search_options.Beam = None,
    length_penalty: search_options.LengthPenalty = None,
    coverage_penalty: Annotated[
        float | None, typer.Option(help="Weight of the coverage penalty (Wu et al. 2016).")
    ] = None,
    nbest: Annotated[
        int, typer.Option(min=1, metavar="N", help="Write the N best as `line ||| text ||| score`.")
    ] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of beam search.")] = False,
    temperature: search_options.Temperature = None,
    top_k: search_options.TopK = None,
    top_p: search_options.TopP = None,
    min_p: search_options.MinP = None,
    seed: search_options.Seed = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Every translation begins with this.")] = "",
    forbid: search_options.Forbid = None,
    require: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Phrase that must occur; repeatable.")
    ] = None,
    no_repeat: search_options.NoRepeat = None,
    min_length: search_options.MinLength = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens; 1.5 · source + 20 unless given.")
    ] = None,
    no_split: Annotated[
        bool,
        typer.Option("--no-split", help="Do not split lines that are longer than the training sentences."),
    ] = False,
    precision: search_options.Precision = "auto",
    shortlist: Annotated[
        bool,
        typer.Option("--shortlist", help="Score likely tokens only; `regard shortlist MODEL` learns which."),
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Batches computed in parallel.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens per batch.")] = None,
    device: search_options.Device = "auto",
    attention: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all attention to a .jsonl or .npz file.")
    ] = None,
    align: Annotated[bool, typer.Option("--align", help="Word alignment (0-0 1-2) after a tab.")] = False,
    align_to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Word alignments to a file of their own.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Draw the attention between words.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines.")] = False,
    strict: search_options.Strict = False,
    restart: search_options.Restart = False,
    on: Annotated[str | None, typer.Option(metavar="ray", help="Run on a Ray cluster.")] = None,
    quiet: search_options.Quiet = False,
) -> None:
    """Translate text, files or standard input, line by line and in order.

    With -o, rerun the same command to resume an interrupted job; the output is byte-identical.

    Examples:

        regard translate "Where is my book?" --model runs/small

        regard translate -i sentences.txt --model runs/small -o translations.txt

        regard translate -i reviews.csv --column review --model runs/small -o translated.csv

        zcat big.gz | regard translate --model runs/small --beam 4 | gzip > translated.gz
    """
    from regard.cli.text_options import find_place, find_source, model_folder
    from regard.decoding.constraints import Constraints
    from regard.decoding.limits import Limits
    from regard.pipelines.input import Column, Field
    from regard.pipelines.translate_file import TranslateOptions

    folder = model_folder(model, "translate", text or [], to)
    place = find_place(text or [], files, column, field, header)
    source = find_source(text or [], files, place.layout, strict, header=place.header)
    layout = place.layout
    for name, words in (("prefix", [prefix]), ("forbid", forbid), ("require", require)):
        search_options.check_text(name, *(words or ()))
    beam_options = {"size": beam, "length_penalty": length_penalty, "coverage_penalty": coverage_penalty}
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    settings = TranslateOptions(
        strategy=_strategy(sample, nbest, beam_options, sampling),
        constraints=Constraints(prefix, require or (), forbid or (), no_repeat or 0, min_length or 0),
        limits=Limits(max_length, batch_tokens, workers),
        nbest=nbest, to=to, split=not no_split, output_format=_form(output, as_json), column=column,
        separator=layout.separator if isinstance(layout, Column) else None,
        quotes=isinstance(layout, Column) and layout.quotes, names=place.names,
        field=layout.name if isinstance(layout, Field) else None,
        align=align or show or align_to is not None, alignment_file=str(align_to or ""),
        attention_file=str(attention or ""), output=str(output), precision=precision, shortlist=shortlist,
    )  # fmt: skip
    _fit_together(settings, source, show, on)
    _run(
        [folder, *(together or [])],
        source,
        settings,
        _Run(device, Shown() if show else None, on, restart, quiet),
    )


@dataclass(frozen=True)
class _Run:
    """How a job is run; what it gives does not depend on it."""

    device: str
    form: Shown | None
    on: str | None
    restart: bool
    quiet: bool


@dataclass(frozen=True)
class Shown:
    """A translation, and below it which of its words looked at which of the source's."""

    def header(self) -> str:
        return ""

    def write(self, result: TranslatedLine) -> str:
        from regard.cli.weight_matrix import render

        drawn = [
            render(alignment.weights, alignment.source_words, alignment.target_words)
            for alignment in result.alignments
            if alignment.target_words
        ]
        return "\n".join([result.text, *drawn, ""]) + "\n" * bool(drawn)


def _strategy(wanted: bool, count: int, beam_options: dict[str, Any], sampling: dict[str, Any]) -> Strategy:
    """Beam search, or sampling with --sample."""
    from regard.decoding.beam import Beam
    from regard.decoding.sampling import Sample
    from regard.errors import OptionError

    given = {key: value for key, value in sampling.items() if value is not None}
    if wanted and beam_options["size"] is not None:
        raise OptionError("--sample draws one word at a time and keeps no beam; give --sample or --beam")
    if not wanted and given:
        name = next(iter(given)).replace("_", "-")
        raise OptionError(
            f"--{name} is about drawing words and does nothing without --sample; add it, or leave --{name} out"
        )
    if wanted:
        return Sample(count=count, **{"seed": 0, **given})
    return Beam(**{key: value for key, value in beam_options.items() if value is not None})


def _form(output: Path, as_json: bool) -> str:
    from regard.data.text_files import suffix

    return (
        "json"
        if as_json
        else {"jsonl": "json", "ndjson": "json", "tsv": "table", "csv": "csv"}.get(suffix(output), "text")
    )


def _fit_together(settings: TranslateOptions, source: Source, show: bool, on: str | None) -> None:
    """Stop in one sentence at options that exclude each other."""
    from regard.cli.text_options import check_paths
    from regard.decoding.beam import Beam
    from regard.errors import OptionError
    from regard.pipelines.attention_file import check_attention_path

    if isinstance(settings.strategy, Beam) and settings.nbest > settings.strategy.size:
        raise OptionError(
            f"--nbest {settings.nbest} needs a beam of at least as many; add --beam {settings.nbest}"
        )
    if (
        settings.output_format == "text"
        and settings.nbest > 1
        and settings.align
        and not settings.alignment_file
        and not show
    ):
        raise OptionError("lines of --nbest have no place for --align; use --align-to FILE, or --json")
    if show and (settings.output != "-" or settings.output_format == "json" or on):
        raise OptionError("--show draws on the terminal; leave out -o, --json and --on, or --show")
    if on not in (None, "ray"):
        raise OptionError(f"--on is followed by ray, got {on!r}")
    if settings.attention_file:
        check_attention_path(settings.attention_file)
    check_paths(source, settings.paths)


def _run(models: list[Path], source: Source, settings: TranslateOptions, how: _Run) -> None:
    from regard.cli.text_options import How, work_through
    from regard.pipelines.job import fingerprint, open_output
    from regard.pipelines.translate_file import make_job
    from regard.training.distributed import pick_device

    places = [open_output(Path(path)) for path in settings.paths]
    device = pick_device(how.device)
    work = make_job(models, settings, device, how.form)

    def over() -> Any:
        from regard.pipelines.ray import run_on_ray

        return run_on_ray(models, settings, device.type)

    about = lambda: settings.about(fingerprint(models, settings.shortlist))  # noqa: E731
    run = How("translate", how.restart, how.quiet)
    work_through(source, places, work, about, run, over if how.on == "ray" else None)
