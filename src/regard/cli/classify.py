"""`regard classify`: label text, files or standard input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from regard.cli import option_groups as shared
from regard.cli.option_groups import OUTPUT, grouped, option

if TYPE_CHECKING:
    from regard.pipelines.classify_file import ClassifiedLine, ClassifyOptions
    from regard.pipelines.output_formats import OutputFormat
    from regard.pipelines.table import TextLocation


@dataclass(frozen=True)
class ClassifyOutputOptions(shared.OptionGroup):
    """What is written, and where."""

    output: Annotated[Path, shared.output_option(".txt, .tsv, .csv or .jsonl, also .gz or .xz")] = Path("-")
    as_json: shared.Json = False
    top: Annotated[
        int, option(min=1, metavar="N", help="Write the N most likely labels.", rich_help_panel=OUTPUT)
    ] = 1
    threshold: Annotated[
        float,
        option(min=0.0, max=1.0, help="No label if its probability is below this.", rich_help_panel=OUTPUT),
    ] = 0.0
    attention: Annotated[
        bool,
        option(
            "--attention",
            help="Show the attention weight of each word, for models with attention pooling.",
            rich_help_panel=OUTPUT,
        ),
    ] = False


@grouped
def command(
    text: shared.Texts = None,
    *,
    model: shared.Model = None,
    ensemble: shared.Ensemble = None,
    input: shared.InputFileOptions,
    output: ClassifyOutputOptions,
    picture: shared.PictureOptions,
    job: shared.BatchJobOptions,
) -> None:
    """Label text, files or standard input, line by line and in order, with probabilities.

    With -o, rerun the same command to resume an interrupted job.

    Examples:

        regard classify "a film to remember"

        regard classify "a film to remember" --model runs/sst2

        regard classify "a film" --model runs/sst2 --with runs/sst2-cnn

        regard classify "a film to remember" --attention

        regard classify "a film to remember" --picture film.svg

        regard classify -i reviews.csv --column review -o labelled.csv

        regard classify -i reviews.jsonl --field review --top 2 -o labels.jsonl

        regard classify recording.npy --model FOLDER   # sequences of numbers

        zcat big.gz | regard classify | cut -f 1 | sort | uniq -c
    """
    from regard.attention.devices import pick_device
    from regard.cli import pictures
    from regard.cli.jobs import model_folder, open_input, open_outputs, run_job
    from regard.pipelines.classify import truncate
    from regard.pipelines.classify_file import make_job
    from regard.pipelines.encoder_attention import encoder_attention
    from regard.pipelines.job import fingerprint

    drawn = pictures.check_options(picture, None if input.files else text or [])
    folders = [model_folder(model, "classify", text or []), *(ensemble or [])]
    source, location = open_input(text or [], input, folders[0])
    options = _classify_options(input, output, job)
    format = _format(options, location)
    output_files = open_outputs(source, [output.output])
    classify = make_job(folders, options, format, pick_device(job.device))
    if drawn:
        example = [classify.model.source_tokenizer.example]
        pictures.check_model(picture, encoder_attention(example, classify.model)[0])
    run_job("classify", source, output_files, classify, lambda: options.about(fingerprint(folders)), job)
    _report_truncated(classify.truncated)
    if drawn:
        lines = truncate(classify.model, pictures.lines_of(text or []))
        pictures.save(picture, encoder_attention(lines, classify.model))


def _classify_options(
    input: shared.InputFileOptions, output: ClassifyOutputOptions, job: shared.BatchJobOptions
) -> ClassifyOptions:
    from regard.cli.jobs import output_format
    from regard.pipelines.classify_file import ClassifyOptions

    return ClassifyOptions(
        top=output.top,
        threshold=output.threshold,
        output_format=output_format(output.output, output.as_json),
        column=input.column,
        field=input.field,
        attention=output.attention,
        output=str(output.output),
        **job.batch_size,
    )


def _report_truncated(count: int) -> None:
    from regard.cli.jobs import report

    if count:
        texts = "1 text was" if count == 1 else f"{count:,} texts were"
        report(f"{texts} truncated to the model's maximum length")


def _format(options: ClassifyOptions, location: TextLocation) -> OutputFormat[ClassifiedLine]:
    """Return the output format; options that exclude each other are an error."""
    from regard.cli.weight_matrix import shows_color
    from regard.errors import OptionError
    from regard.pipelines.classify_file import make_format

    if options.attention and options.output_format != "json":
        if options.output != "-" or options.output_format != "text":
            raise OptionError(
                "--attention is shown on the terminal or written as JSON; leave out -o, or add --json"
            )
        return WithAttention(options.top, shows_color(sys.stdout))
    return make_format(options, location.layout, location.names)


@dataclass(frozen=True)
class WithAttention:
    """An output format: the labels, and below them every word with its attention weight."""

    top: int
    color: bool

    def header(self) -> str:
        return ""

    def write(self, result: ClassifiedLine) -> str:
        from regard.pipelines.classify_file import TextFormat

        line = TextFormat(self.top).write(result)
        attention = result.attention
        if attention is None or not attention.words or not result.classification.probabilities:
            return line
        largest = max(attention.weights) or 1.0
        words = [
            self._word(word, weight, weight / largest)
            for word, weight in zip(attention.words, attention.weights, strict=True)
        ]
        return f"{line}  {' '.join(words)}\n"

    def _word(self, word: str, weight: float, share: float) -> str:
        from regard.cli.weight_matrix import COLOURS, plain

        colour = COLOURS[min(int(share * len(COLOURS)), len(COLOURS) - 1)]
        shown = f"{plain(word)}({weight:.2f})"
        return f"\x1b[{colour}m{shown}\x1b[0m" if self.color and colour else shown
