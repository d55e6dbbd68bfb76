"""Classify files: the resumable job behind `regard classify`, and its output formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.models.classifier import Classifier, ClassifierEnsemble
from regard.models.text_model import BATCH_TOKENS
from regard.pipelines.classify import Classification, WordWeights, classify, truncate, word_attention
from regard.pipelines.input import Chunk, Field, Layout, Row, parsed
from regard.pipelines.job import job_settings, load_kind
from regard.pipelines.output_formats import (
    OutputFormat,
    WithoutHeader,
    json_line,
    one_line,
    split_row,
    table_line,
)
from regard.pipelines.packing import packing


@dataclass(frozen=True)
class ClassifyOptions:
    """Everything except the model and the input that determines the output of a classification job.

    Attributes:
        top: number of labels to write, most likely first.
        threshold: write no label below this probability.
        output_format: text, table, csv or json.
        column: name or number of the column of a table.
        field: name of the field of JSON lines.
        attention: write the attention to each word.
        batch_tokens: maximum size of a batch.
        output: the output file; `-` is standard output.
    """

    top: int = 1
    threshold: float = 0.0
    output_format: str = "text"
    column: str | None = None
    field: str | None = None
    attention: bool = False
    batch_tokens: int = BATCH_TOKENS
    output: str = "-"

    def about(self, fingerprint: str) -> dict[str, Any]:
        """Return the settings that must be unchanged for an interrupted job to be resumed."""
        return job_settings(self, fingerprint)


@dataclass(frozen=True)
class ClassifiedLine:
    """A line, its classification, and the attention to each word if requested."""

    row: Row
    classification: Classification
    attention: WordWeights | None = None


@dataclass(frozen=True)
class TextFormat(WithoutHeader):
    """`label TAB probability` of the `top` most likely labels; a blank line stays blank."""

    top: int = 1

    def write(self, result: ClassifiedLine) -> str:
        return "\t".join(_cells(result.classification, self.top)) + "\n"


@dataclass(frozen=True)
class TableFormat:
    """The cells of the input, then columns of labels and probabilities; .tsv, or .csv with `commas`."""

    split: Callable[[Row], list[str]]
    top: int = 1
    commas: bool = False
    names: tuple[str, ...] = ()  # of the columns of the input, if it has a header

    def header(self) -> str:
        if not self.names:
            return ""
        suffixes = ["", *(f"_{i}" for i in range(2, self.top + 1))]
        more = [name + suffix for suffix in suffixes for name in ("predicted", "probability")]
        return table_line([*self.names, *more], self.commas)

    def write(self, result: ClassifiedLine) -> str:
        cells = _cells(result.classification, self.top) or ["", ""] * self.top
        return table_line([*self.split(result.row), *cells], self.commas)


@dataclass(frozen=True)
class JsonFormat(WithoutHeader):
    """One JSON object per line: the fields of the input, or its text, plus label and probabilities."""

    fields: Callable[[Row], dict[str, Any]]
    top: int = 1

    def write(self, result: ClassifiedLine) -> str:
        classification, attention = result.classification, result.attention
        probabilities = list(classification.probabilities.items())[: self.top]
        record = self.fields(result.row) | {
            "predicted": str(classification) or None,
            "probability": _rounded(classification.probability),
            "probabilities": {label: _rounded(p) for label, p in probabilities},
        }
        if attention is not None:
            pairs = zip(attention.words, attention.weights, strict=True)
            record["attention"] = [[word, round(weight, 6)] for word, weight in pairs]
        return json_line(record)


def _cells(classification: Classification, top: int) -> list[str]:
    """Return label, probability, label, probability, …; the first label is empty below the threshold.

    The list is empty for a blank text.
    """
    pairs = list(classification.probabilities.items())[:top]
    cells = [cell for label, p in pairs for cell in (one_line(label), f"{p:.4f}")]
    return [str(classification), *cells[1:]] if cells else []


def _rounded(p: float | None) -> float | None:
    return None if p is None else round(p, 6)


class ClassifyJob:
    """Classify a chunk of lines; the result depends on the chunk and the options only."""

    def __init__(
        self,
        model: Classifier | ClassifierEnsemble,
        options: ClassifyOptions,
        output_format: OutputFormat[ClassifiedLine],
    ) -> None:
        self.model, self.options, self.output_format = model, options, output_format
        self.truncated = 0  # texts that were longer than the model's positions
        self._packing = packing(Path(options.output))

    def __call__(self, chunk: Chunk) -> list[bytes]:
        header = self.output_format.header() if chunk.first == 0 else ""
        text = header + "".join(map(self.output_format.write, self.results(chunk)))
        return [self._packing.pack(text.encode("utf-8"))]

    def results(self, chunk: Chunk) -> list[ClassifiedLine]:
        texts = [row.text for row in chunk.rows]
        truncated = truncate(self.model, texts)
        self.truncated += sum(text != original for text, original in zip(truncated, texts, strict=True))
        options = self.options
        labels = classify(
            truncated, self.model, threshold=options.threshold, batch_tokens=options.batch_tokens
        )
        attention: Sequence[WordWeights | None] = [None] * len(texts)
        if options.attention:
            attention = word_attention(truncated, self.model)
        return [ClassifiedLine(*line) for line in zip(chunk.rows, labels, attention, strict=True)]


def make_format(
    options: ClassifyOptions, layout: Layout, names: Sequence[str] = ()
) -> OutputFormat[ClassifiedLine]:
    """Return the output format; `layout` splits lines into cells, `names` are the columns of the input."""
    if options.output_format == "json":
        return JsonFormat(_fields(layout, names), options.top)
    if options.output_format == "text":
        return TextFormat(options.top)
    return TableFormat(split_row(layout), options.top, options.output_format == "csv", tuple(names))


def _fields(layout: Layout, names: Sequence[str]) -> Callable[[Row], dict[str, Any]]:
    if isinstance(layout, Field):
        return lambda row: parsed(row.line) if row.line.strip() else {}
    if names:
        split = split_row(layout)
        return lambda row: dict(zip(names, split(row), strict=False))
    return lambda row: {"text": row.text}


def make_job(
    folders: Sequence[Path],
    options: ClassifyOptions,
    output_format: OutputFormat[ClassifiedLine],
    device: Any = "cpu",
) -> ClassifyJob:
    """Load the model, or several for an ensemble, and check them and the options before the job starts."""
    models = [load_kind(folder, device, Classifier, "classifying takes a classifier") for folder in folders]
    model = models[0] if len(models) == 1 else ClassifierEnsemble(models)
    if options.attention:
        word_attention([model.source_tokenizer.example], model)  # raises an error if it has none
    return ClassifyJob(model, options, output_format)
