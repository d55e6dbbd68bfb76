"""Translate files: chunks of lines in, bytes of every output out, in order and resumable."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.data.tokenizer import EOS
from regard.decoding.beam import GREEDY
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints
from regard.decoding.engine import fast
from regard.decoding.engine.shortlist import load as load_shortlist
from regard.decoding.ensemble import Ensemble
from regard.decoding.limits import DEFAULT_LIMITS, Limits
from regard.decoding.strategy import Strategy
from regard.errors import OptionError
from regard.models.target_language import add_target
from regard.models.translator import Translator
from regard.pipelines.input import Chunk, Column, WholeLine
from regard.pipelines.job import job_settings, load_kind
from regard.pipelines.long_lines import LongLineSplitter, max_source_length
from regard.pipelines.output_formats import OutputFormat, split_row
from regard.pipelines.packing import packing
from regard.pipelines.text_form import as_read
from regard.pipelines.translate import translate
from regard.pipelines.translation_formats import (
    AlignmentFormat,
    JsonFormat,
    NbestFormat,
    TableFormat,
    TextFormat,
    TranslatedLine,
)

ATTENTION_LINES = 32  # lines whose attention maps are in memory at once


@dataclass(frozen=True)
class TranslateOptions:
    """Everything except the model and the input that determines the output of a translation job.

    Attributes:
        strategy, constraints, limits, nbest, to: as for `translate`. Constraints apply to each line.
        split: translate lines that are longer than the training sentences in pieces, and those of several
            sentences for a model of single ones.
        output_format: text, table, csv or json.
        column: name or number of the column of a table.
        separator: of the columns; None if lines are not rows of a table.
        quotes: cells may be quoted.
        names: names of the columns.
        field: name of the field of JSON lines.
        align: compute word alignments.
        alignment_file: file for the alignments; written beside the text if empty.
        attention_file: file for the attention maps.
        output: file for the translations; `-` is standard output.
        precision: of the engine.
        shortlist: restrict the output to the tokens of the model's shortlist.
    """

    strategy: Strategy = GREEDY
    constraints: Constraints = NO_CONSTRAINTS
    limits: Limits = DEFAULT_LIMITS
    nbest: int = 1
    to: str | None = None
    split: bool = True
    output_format: str = "text"
    column: str | None = None
    separator: str | None = None
    quotes: bool = False
    names: Sequence[str] = ()
    field: str | None = None
    align: bool = False
    alignment_file: str = ""
    attention_file: str = ""
    output: str = ""
    precision: str = "auto"
    shortlist: bool = False

    @property
    def paths(self) -> list[str]:
        """The output files, in the order of the outputs of a chunk."""
        return [self.output, *(path for path in (self.alignment_file, self.attention_file) if path)]

    def about(self, fingerprint: str) -> dict[str, Any]:
        """The settings that an interrupted job must share with the one that resumes it."""
        return job_settings(self, fingerprint, ("output", "workers"))


class TranslateJob:
    """Translate a chunk of lines into the bytes of each output.

    The result depends on the chunk and the options only, so a job can be resumed or distributed.
    """

    def __init__(
        self,
        model: Translator,
        decoder: Any,
        options: TranslateOptions,
        output_format: OutputFormat[TranslatedLine] | None = None,
    ) -> None:
        """`decoder` runs the search: the model, its engine or an ensemble."""
        self.model, self.decoder, self.options = model, decoder, options
        self._formats = [output_format or _make_format(options)]
        if options.alignment_file:
            self._formats.append(AlignmentFormat())
        self._split = LongLineSplitter(model, max_source_length(model) if options.split else None)
        self._packings = [packing(Path(path)) for path in options.paths]
        self.on_results: Callable[[list[TranslatedLine]], None] | None = None  # called after each chunk

    def __call__(self, chunk: Chunk) -> list[bytes]:
        results = self.translate(chunk)
        if self.on_results is not None:
            self.on_results(results)
        outputs = []
        for output_format in self._formats:
            header = output_format.header() if chunk.first == 0 else ""
            outputs.append((header + "".join(map(output_format.write, results))).encode("utf-8"))
        if self.options.attention_file:
            outputs.append(self._attention(results))
        return [packing.pack(data) for packing, data in zip(self._packings, outputs, strict=True)]

    def translate(self, chunk: Chunk) -> list[TranslatedLine]:
        """Split long lines, translate all pieces in one call, and group them by line."""
        options = self.options
        # Before the split: all pieces of a line have the same target.
        texts = add_target([row.text for row in chunk.rows], self.model, options.to, one_language=True)
        lines = self._split(texts, options.constraints)
        pieces = [piece.text for line in lines for piece in line]
        # Prefix and required words of a line apply to its first piece.
        is_first = [i == 0 for line in lines for i in range(len(line))]
        translations = iter(
            translate(
                pieces,
                self.decoder,
                options.to,
                strategy=options.strategy,
                constraints=options.constraints.only_where(is_first),
                limits=options.limits,
                nbest=options.nbest,
            )
        )
        results = [
            TranslatedLine(chunk.first + i, row, line, [next(translations) for _ in line])
            for i, (row, line) in enumerate(zip(chunk.rows, lines, strict=True))
        ]
        if options.align:
            self._add_alignments(results)
        return results

    def _add_alignments(self, results: list[TranslatedLine]) -> None:
        """Compute the word alignment of each best translation."""
        from regard.pipelines.align import View
        from regard.pipelines.token_words import WordAlignment, Words, word_weights

        view = View.of(self.model)
        tokenizers: Any = self.model.source_tokenizer, self.model.target_tokenizer
        for result, attention in self._attention_of(results, ("cross",), 1):
            result.alignments = []
            parts = zip(result.pieces, result.translations, attention, strict=True)
            for i, (piece, part, maps) in enumerate(parts):
                constraints = self.options.constraints.only_where([i == 0])
                (text,), _ = as_read([piece.text], self.model, constraints)  # as it was read
                source = Words.of_text(tokenizers[0], text)
                target = Words.of_tokens(tokenizers[1], part.hypotheses[0].tokens if maps else [])
                weights = torch.zeros(0, len(source.words))
                if maps:
                    weights = word_weights(view(maps[0]), source, target)
                result.alignments.append(WordAlignment(weights, source.words, target.words))

    def _attention(self, results: list[TranslatedLine]) -> bytes:
        """Return the attention maps of all hypotheses as .npz or JSON lines."""
        from regard.decoding.attention_weights import KINDS
        from regard.pipelines.attention_file import AttentionArchive, AttentionLines

        is_archive = Path(self.options.attention_file).suffix == ".npz"
        data, text = io.BytesIO(), io.StringIO(newline="\n")
        file: Any = AttentionArchive(data) if is_archive else AttentionLines(text)
        for result, attention in self._attention_of(results, KINDS, self.options.nbest):
            for i, (part, maps) in enumerate(zip(result.translations, attention, strict=True)):
                line = result.number if len(result.translations) == 1 else f"{result.number}.{i}"
                for rank, attention_maps in enumerate(maps):
                    file.add(line, rank, attention_maps, part.hypotheses[rank].score)
        if is_archive:
            file.close()
        return data.getvalue() if is_archive else text.getvalue().encode("utf-8")

    def _attention_of(
        self, results: list[TranslatedLine], kinds: Sequence[str], nbest: int
    ) -> Iterator[tuple[TranslatedLine, list[list[Any]]]]:
        """Yield each result with the maps of its parts' hypotheses, computed for a few lines at a time."""
        from regard.decoding.attention_weights import attention_maps

        for start in range(0, len(results), ATTENTION_LINES):
            some = results[start : start + ATTENTION_LINES]
            pairs = [
                (part, h) for result in some for part in result.translations for h in part.hypotheses[:nbest]
            ]
            sources, targets = [part.source_tokens for part, _ in pairs], [h.all_tokens for _, h in pairs]
            maps = iter(attention_maps(sources, targets, self.model, kinds) if pairs else [])
            for result in some:
                yield result, [[next(maps) for _ in part.hypotheses[:nbest]] for part in result.translations]


def make_job(
    folders: Sequence[Path],
    options: TranslateOptions,
    device: Any = "cpu",
    output_format: OutputFormat[TranslatedLine] | None = None,
) -> TranslateJob:
    """Load the model, or several for an ensemble, and check them and the options before the job starts."""
    models: list[Any] = [
        load_kind(folder, device, Translator, "translating takes a translator") for folder in folders
    ]
    if models[0].source_tokenizer.kind == "frames":
        options = _for_sequences(options, len(models))
    if options.shortlist and len(models) > 1:
        raise OptionError("a shortlist is for one model; leave out --with, or --shortlist")
    shortlist = load_shortlist(folders[0]) if options.shortlist else None
    decoders = [fast(model, options.precision, shortlist) for model in models]
    decoder: Any = decoders[0] if len(decoders) == 1 else Ensemble(decoders)
    job = TranslateJob(models[0], decoder, options, output_format)
    translate([], decoder, options.to, strategy=options.strategy, nbest=options.nbest)  # checks the options
    constraints = options.constraints.encode(decoder.target_tokenizer, 1)
    if constraints.required_of(0):
        options.strategy.with_required()
    if options.align or options.attention_file:
        _check_attention(models)
    return job


def _for_sequences(options: TranslateOptions, models: int) -> TranslateOptions:
    """The options for a model that reads sequences of numbers: nothing is split or aligned to words."""
    if options.align or options.shortlist or models > 1:
        raise OptionError(
            "--align, --show, --shortlist and --with are for text, and this model reads sequences of "
            "numbers; leave them out"
        )
    return replace(options, split=False)


def _check_attention(models: Sequence[Any]) -> None:
    from regard.decoding.attention_weights import attention_maps

    if len(models) > 1:
        raise OptionError(
            "alignments and attention are those of one model, got an ensemble; leave out --with"
        )
    tokenizer = models[0].source_tokenizer
    maps = attention_maps([tokenizer.encode(tokenizer.example)], [[EOS]], models[0], ("cross",))
    if not maps[0].names("cross"):
        raise OptionError("this model's decoder has no attention to the source, so there is no alignment")


def _make_format(options: TranslateOptions) -> OutputFormat[TranslatedLine]:
    align = options.align and not options.alignment_file
    if options.output_format == "json":
        return JsonFormat(options.field is not None, options.nbest > 1, align)
    if options.output_format in ("table", "csv"):
        layout = WholeLine() if options.separator is None else Column(1, options.separator, options.quotes)
        return TableFormat(split_row(layout), align, options.output_format == "csv", tuple(options.names))
    return NbestFormat() if options.nbest > 1 else TextFormat(align)
