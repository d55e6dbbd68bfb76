"""`regard tag`: find names and other spans in text, files or standard input."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from regard.cli import option_groups as shared
from regard.cli.option_groups import INPUT, OUTPUT, grouped, option

if TYPE_CHECKING:
    from regard.pipelines.input import Source
    from regard.pipelines.output_formats import OutputFormat
    from regard.pipelines.tag_file import TaggedLine, TagOptions

CONLL = ("conll", "iob", "iob2", "bio", "iobes", "conllu")
COLOURS = (36, 33, 35, 32, 34, 31)  # ANSI codes, one per type of span


@dataclass(frozen=True)
class TagInput(shared.OptionGroup):
    """Input files: text, JSON lines or CoNLL."""

    files: Annotated[
        list[Path] | None,
        shared.input_option("Text, .jsonl or .conll, also .gz or .xz; - is standard input."),
    ] = None
    conll: Annotated[
        bool, option("--conll", help="The input is CoNLL, whatever its name.", rich_help_panel=INPUT)
    ] = False
    column: Annotated[
        int, option(min=1, help="Column of the words in a CoNLL file.", rich_help_panel=INPUT)
    ] = 1
    field: shared.JsonField = None
    spaced: Annotated[
        bool,
        option("--spaced", help="The text is tokenised: split words at spaces only.", rich_help_panel=INPUT),
    ] = False
    strict: shared.Strict = False

    def all_end_with(self, texts: list[str], suffixes: tuple[str, ...]) -> bool:
        """True if there is an -i option and all files, `texts` included, have one of these suffixes."""
        from regard.data.text_files import suffix

        files = [*self.files, *map(Path, texts)] if self.files else []
        return bool(files) and all(suffix(path) in suffixes for path in files)


@dataclass(frozen=True)
class TagOutputOptions(shared.OptionGroup):
    """What is written, and where."""

    output: Annotated[Path, shared.output_option(".txt, .conll or .jsonl, also .gz or .xz")] = Path("-")
    as_json: shared.Json = False
    as_conll: Annotated[bool, option("--to-conll", help="Write CoNLL.", rich_help_panel=OUTPUT)] = False
    scheme: Annotated[
        str | None,
        option(help="Write tags as bio, iobes or io; default: the model's.", rich_help_panel=OUTPUT),
    ] = None

    def format(self, conll_input: bool) -> str:
        """Return json, conll or text, by the options and the file name."""
        from regard.data.text_files import suffix
        from regard.errors import OptionError

        if self.as_json and self.as_conll:
            raise OptionError("--json and --to-conll exclude each other; give one of them")
        kind = suffix(self.output)
        if self.as_json or (kind in ("jsonl", "ndjson") and not self.as_conll):
            return "json"
        return "conll" if self.as_conll or conll_input or kind in CONLL else "text"


@grouped
def command(
    text: shared.Texts = None,
    *,
    model: shared.Model = None,
    input: TagInput,
    output: TagOutputOptions,
    picture: shared.PictureOptions,
    job: shared.BatchJobOptions,
) -> None:
    """Find names and other spans with a trained tagger, line by line and in order.

    Input is plain text, which is split into words, or CoNLL (a word per line), which gets one more column.
    Output is the text with marked spans (in colour on a terminal), CoNLL, or JSON lines with position and
    type of every span. With -o, rerun the same command to resume an interrupted job.

    Examples:

        regard tag "Ada Lovelace lived in London."

        regard tag "Ada met Bob." --model runs/wnut17-minilm --picture tag.svg

        regard tag -i tweets.txt --model runs/wnut17 -o spans.jsonl

        regard tag -i test.conll.gz --model runs/wnut17 -o tagged.conll

        regard tag -i test.tsv --conll --column 2 -o tagged.conll

        zcat tweets.jsonl.gz | regard tag --field text --json | head
    """
    from regard.attention.devices import pick_device
    from regard.cli import pictures
    from regard.cli.jobs import model_folder, open_outputs, run_job
    from regard.pipelines.encoder_attention import encoder_attention
    from regard.pipelines.job import fingerprint
    from regard.pipelines.tag_file import TagOptions, make_job

    texts = text or []
    drawn = pictures.check_options(picture, None if input.files else texts)
    folder = model_folder(model, "tag", texts)
    conll = input.conll or input.all_end_with(texts, CONLL)
    options = TagOptions(
        output_format=output.format(conll),
        conll=conll,
        spaced=input.spaced,
        column=input.column,
        field=input.field or ("text" if input.all_end_with(texts, ("jsonl", "ndjson")) else None),
        scheme=output.scheme,
        output=str(output.output),
        **job.batch_size,
    )
    _check(options)
    source = _source(texts, input, options, folder)
    output_files = open_outputs(source, [output.output])
    tag = make_job(folder, options, pick_device(job.device), _coloured(options))
    if drawn:
        probe = [tag.model.source_tokenizer.example]
        pictures.check_model(picture, encoder_attention(probe, tag.model)[0])
    run_job("tag", source, output_files, tag, lambda: options.about(fingerprint([folder])), job)
    if drawn:
        pictures.save(picture, tag.attention(pictures.lines_of(texts)))


def _check(options: TagOptions) -> None:
    """Raise OptionError for options that exclude each other."""
    from regard.data.tag_schemes import scheme
    from regard.errors import OptionError

    if options.conll and options.field is not None:
        raise OptionError("--conll is for CoNLL input and --field for JSON lines; give one of them")
    if options.conll and options.spaced:
        raise OptionError("--spaced is for plain text, and CoNLL input has separate words; leave it out")
    if options.column != 1 and not options.conll:
        raise OptionError("--column is for CoNLL input; add --conll, or leave it out")
    if options.scheme is not None:
        scheme(options.scheme)
        if options.output_format == "text":
            raise OptionError("--scheme is for CoNLL and JSON output; choose one of them, or leave it out")


def _source(texts: list[str], input: TagInput, options: TagOptions, model: Path) -> Source:
    """Return the input lines; all CoNLL files are checked first."""
    from regard.cli.jobs import make_source
    from regard.pipelines.input import Field, Sentences, WholeLine
    from regard.pipelines.sequence_input import open_sequences, reads_sequences
    from regard.pipelines.tag_file import check_conll

    if reads_sequences(model):
        return open_sequences(texts, input.files, field=input.field, strict=input.strict)[0]
    line = WholeLine() if options.field is None else Field(options.field)
    source = make_source(texts, input.files, Sentences() if options.conll else line, input.strict)
    if options.conll:
        check_conll(source.files, options.column)
    return source


def _coloured(options: TagOptions) -> OutputFormat[TaggedLine] | None:
    """Return a format that colours spans by type, if a terminal shows the output."""
    from regard.cli.weight_matrix import shows_color
    from regard.pipelines.tag_file import MarkedFormat

    if options.output_format != "text" or options.output != "-" or not shows_color(sys.stdout):
        return None
    types: dict[str, int] = {}

    def mark(text: str, kind: str) -> str:
        colour = COLOURS[types.setdefault(kind, len(types)) % len(COLOURS)]
        return f"\x1b[1;4;{colour}m{text}\x1b[0m\x1b[{colour}m {kind}\x1b[0m"

    return MarkedFormat(mark)
