"""A job that labels lines: chunks of lines in, bytes out, in order; what is written depends on the chunk and the settings alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from regard.errors import FolderError
from regard.models.classifier import Classifier
from regard.models.folder import load
from regard.models.text_model import BATCH_TOKENS
from regard.pipelines.classify import Classification, WordWeights, classify, fitting, word_attention
from regard.pipelines.input import Chunk, Field, Layout, Row, parsed
from regard.pipelines.job import job_settings
from regard.pipelines.packing import packing
from regard.pipelines.table import one_line, split_row, table_line

TO_LOOK_AT = ("model", "", "x")  # texts by which it is seen early whether there is attention to show


@dataclass(frozen=True)
class ClassifyOptions:
    """Everything but the model and the text that decides what is written."""

    top: int = 1  # labels that are written, likeliest first
    threshold: float = 0.0
    form: str = "text"  # text, table, csv or json
    column: str | None = None
    field: str | None = None
    attention: bool = False
    batch_tokens: int = BATCH_TOKENS
    output: str = "-"

    def about(self, fingerprint: str) -> dict[str, Any]:
        """What a job must have in common with the one it goes on with."""
        return job_settings(self, fingerprint)


@dataclass(frozen=True)
class Result:
    """A line, its label, and on request the words that were looked at."""

    row: Row
    found: Classification
    looked: WordWeights | None = None


class OutputFormat(Protocol):
    """How an answer is written; always whole lines."""

    def begin(self) -> str:
        """What stands before the first answer."""
        ...

    def write(self, answer: Result) -> str: ...


@dataclass(frozen=True)
class Text:
    """`label TAB probability`, of the `top` likeliest labels; a blank line stays blank."""

    top: int = 1

    def begin(self) -> str:
        return ""

    def write(self, answer: Result) -> str:
        return "\t".join(_pairs(answer.found, self.top)) + "\n"


@dataclass(frozen=True)
class Table:
    """The cells of the line as it came, and labels and probabilities as more columns; with tabs, or as .csv."""

    split: Callable[[Row], list[str]]
    top: int = 1
    commas: bool = False
    header: tuple[str, ...] = ()  # the names of the columns, where they have some

    def begin(self) -> str:
        more = [
            f"{name}{f'_{i}' * (i > 1)}"
            for i in range(1, self.top + 1)
            for name in ("predicted", "probability")
        ]
        return self._line([*self.header, *more]) if self.header else ""

    def write(self, answer: Result) -> str:
        pairs = _pairs(answer.found, self.top)
        return self._line([*self.split(answer.row), *(pairs or ["", ""] * self.top)])

    def _line(self, row: list[str]) -> str:
        return table_line(row, self.commas)


@dataclass(frozen=True)
class Json:
    """One object a line: the one that came, the cells by their names, or the text; with what was predicted."""

    fields: Callable[[Row], dict[str, Any]]
    top: int = 1

    def begin(self) -> str:
        return ""

    def write(self, answer: Result) -> str:
        found = answer.found
        likeliest = dict(list(found.probabilities.items())[: self.top])
        record = self.fields(answer.row) | {
            "predicted": str(found) or None,
            "probability": _rounded(found.probability),
            "probabilities": {label: _rounded(p) for label, p in likeliest.items()},
        }
        if answer.looked is not None:
            record["attention"] = [
                [word, round(w, 6)]
                for word, w in zip(answer.looked.words, answer.looked.weights, strict=True)
            ]
        try:
            return json.dumps(record, ensure_ascii=False).encode().decode() + "\n"
        except UnicodeEncodeError:  # half a character, as JSON can spell it
            return json.dumps(record) + "\n"


def _pairs(found: Classification, top: int) -> list[str]:
    """label, probability, label, probability …; the first label is empty where it was not sure enough. None for a blank text."""
    pairs = list(found.probabilities.items())[:top]
    cells = [cell for label, p in pairs for cell in (one_line(label), f"{p:.4f}")]
    return [str(found), *cells[1:]] if cells else []


def _rounded(p: float | None) -> float | None:
    return None if p is None else round(p, 6)


class ClassifyJob:
    """What is done to a chunk, with the model at hand."""

    def __init__(self, model: Classifier, settings: ClassifyOptions, form: OutputFormat) -> None:
        self.model, self.settings, self.form = model, settings, form
        self.cut = 0  # texts that were longer than the model's positions
        self._packing = packing(Path(settings.output))

    def __call__(self, chunk: Chunk) -> list[bytes]:
        written = "".join(map(self.form.write, self.answers(chunk)))
        return [
            self._packing.pack(((self.form.begin() if chunk.first == 0 else "") + written).encode("utf-8"))
        ]

    def answers(self, chunk: Chunk) -> list[Result]:
        texts = [row.text for row in chunk.rows]
        kept = fitting(self.model, texts)
        self.cut += sum(text != whole for text, whole in zip(kept, texts, strict=True))
        found = classify(
            kept, self.model, threshold=self.settings.threshold, batch_tokens=self.settings.batch_tokens
        )
        looked: Sequence[WordWeights | None] = (
            word_attention(kept, self.model) if self.settings.attention else [None] * len(texts)
        )
        return [Result(*each) for each in zip(chunk.rows, found, looked, strict=True)]


def make_format(settings: ClassifyOptions, layout: Layout, header: Sequence[str] = ()) -> OutputFormat:
    """By the settings; `layout` says how lines become cells, `header` names those of the input."""
    if settings.form == "json":
        return Json(_fields(layout, header), settings.top)
    if settings.form == "text":
        return Text(settings.top)
    return Table(split_row(layout), settings.top, settings.form == "csv", tuple(header))


def _fields(layout: Layout, header: Sequence[str]) -> Callable[[Row], dict[str, Any]]:
    if isinstance(layout, Field):
        return lambda row: parsed(row.line) if row.line.strip() else {}
    split = split_row(layout)
    return (
        (lambda row: dict(zip(header, split(row), strict=False)))
        if header
        else lambda row: {"text": row.text}
    )


def make_job(folder: Path, settings: ClassifyOptions, form: OutputFormat, device: Any = "cpu") -> ClassifyJob:
    """Load the model and get ready; what is wrong with it or the settings is said now."""
    model = load(folder, device)
    if not isinstance(model, Classifier):
        raise FolderError(
            f"{folder} is {model.what}, and classifying takes a classifier; `{model.command}` uses it"
        )
    if settings.attention:
        word_attention(TO_LOOK_AT, model)
    return ClassifyJob(model, settings, form)
