"""The rows of each task: how files are read, the target vocabulary, and the checks of every row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.data.column_detection import column_number
from regard.data.prepare import Prepared
from regard.data.reader_choice import JSON, TABLES, open_files, open_labelled
from regard.data.readers import ConcatRows, RenamedLabels, Rows, concatenate
from regard.data.splits import RowRange
from regard.data.text_files import is_unreadable, suffix
from regard.data.tokenizer import EOS, Tokenizer
from regard.errors import DataError, OptionError
from regard.registry import Registry

SHOWN = 12  # labels named in a message
# Below these numbers of training rows per class, validation rows or training tokens there is a warning.
MIN_PER_CLASS, MIN_VALIDATION, MIN_TOKENS = 100, 20, 20_000


class RowFormat:
    """Pairs of texts, for translators; base class of the other formats."""

    task = "translate"
    columns: tuple[str, ...] = ("source", "target")  # names of the columns
    labels: str | None = None  # kind of the target vocabulary; None: text like the source
    classes = False  # the target is a class, so splits are stratified
    unit, min_rows = "pairs", 2000  # name of a row, and the number below which a warning is given
    also_reads: tuple[str, ...] = ()  # other tasks whose corpora have such rows
    sequences = False  # the source is a sequence of numbers (sequence_rows.py)

    @property
    def paired(self) -> bool:
        return len(self.columns) == 2

    def read(self, files: Sequence[Any], source: str | int | None, target: str | int | None) -> Rows:
        """A reader of files that a user names."""
        return open_files(files, source, target, self.paired)

    def finish(self, rows: Rows, data: Any) -> Rows:
        """Apply the other options of the `data:` block to the rows."""
        return rows

    def split_key(self, text: str) -> str:
        """What decides in which split a row is, given its source."""
        return text

    def check(self, rows: Rows, target: Tokenizer) -> None:
        """Raise a DataError at the first row that cannot be trained on or scored."""

    def check_renamed(self, names: dict[str, str], target: Tokenizer) -> None:
        """Raise an OptionError unless `data.labels` renames labels that the training rows have."""
        if names and self.labels is None:
            raise OptionError(
                f"data.labels renames labels, and rows of task {self.task} have none; remove it"
            )
        known = {entry.partition("-")[2] or entry for entry in target.entries} | set(target.entries)
        for label, name in names.items():
            if name not in known:
                raise OptionError(
                    f"data.labels renames {label!r} to {name!r}, and no training row has it; "
                    f"correct it (the labels are {_shown(target.entries)})"
                )

    def scarcity_warnings(self, train: Prepared, validation: Prepared | None, target: Tokenizer) -> list[str]:
        """Warnings if there is too little data to train or to validate on."""
        warnings = []
        if train.rows < self.min_rows:
            warnings.append(
                f"{train.rows:,} training {self.unit} are few: below about {self.min_rows:,} "
                f"{self.scarcity_advice()}"
            )
        if validation is not None and validation.rows < MIN_VALIDATION:
            count = (
                "1 validation row is" if validation.rows == 1 else f"{validation.rows:,} validation rows are"
            )
            warnings.append(f"{count} few: scores will vary from seed to seed; use at least {MIN_VALIDATION}")
        return warnings

    def scarcity_advice(self) -> str:
        """What too little data causes, and what helps; the end of the warning."""
        return "a translator overfits and translates nothing else; add pairs"


class TextRows(RowFormat):
    """Lines of one text, for a language model."""

    task, columns = "language", ("text",)

    def scarcity_warnings(self, train: Prepared, validation: Prepared | None, target: Tokenizer) -> list[str]:
        tokens = train.report.target_tokens
        if tokens >= MIN_TOKENS:
            return []
        return [
            f"{tokens:,} training tokens are few: below about {MIN_TOKENS:,} a language model overfits; "
            "add text"
        ]


class ClassifyRows(RowFormat):
    """A text and its label."""

    task, columns, labels, classes = "classify", ("text", "label"), "label", True

    def scarcity_warnings(self, train: Prepared, validation: Prepared | None, target: Tokenizer) -> list[str]:
        tokens = train.arrays("target")[0]
        counts = {label: int((tokens == token).sum()) for token, label in enumerate(target.entries, EOS + 1)}
        single = [label for label, count in counts.items() if count == 1]
        warnings = []
        if single:
            subject = f"{len(single)} of {len(counts)} labels have" if len(single) > 1 else "1 label has"
            warnings.append(f"{subject} one training row ({_shown(single)}); add rows, or remove such labels")
        if train.rows < MIN_PER_CLASS * len(counts):
            likely = max(counts.values()) / train.rows
            warnings.append(
                f"{train.rows:,} training rows for {len(counts)} labels are few: below about {MIN_PER_CLASS} "
                f"each, accuracy may stay near the {likely:.0%} of always answering the most frequent label; "
                "add rows, or fine-tune a pretrained encoder (model.pretrained)"
            )
        return warnings + super().scarcity_warnings(train, validation, target)[train.rows < self.min_rows :]

    def read(self, files: Sequence[Any], source: str | int | None, target: str | int | None) -> Rows:
        tables = [
            file for file in files if not isinstance(file, list) and suffix(Path(file)) in (*TABLES, *JSON)
        ]
        if len(files) == 1 and not isinstance(files[0], list):
            tables = list(files)  # a single file is a table, whatever its extension
        pairs_of_files = [file for file in files if file not in tables]
        parts = [open_labelled(Path(file).expanduser(), source, target) for file in tables]
        if pairs_of_files or not files:
            parts.append(open_files(pairs_of_files, source, target, paired=True))
        return concatenate(parts)

    def finish(self, rows: Rows, data: Any) -> Rows:
        """Remove the spaces around labels, and rename them by `data.labels`."""
        return RenamedLabels(rows, tuple(data.labels.items()))

    def check(self, rows: Rows, target: Tokenizer) -> None:
        labels = set(target.entries)
        for number, (_, label) in _usable(rows):
            if label not in labels:
                raise DataError(
                    f"{rows.place(number, 1)}: the label {label!r} is not one of the training labels "
                    f"({_shown(target.entries)}); correct it, remove the row, or train with it"
                )
        if len(labels) < 2:
            raise DataError(
                f"every row of {rows.files[0]} has the label {next(iter(labels), '')!r}, and a classifier "
                "needs at least two labels; check data.target, which names the column of labels, or add rows "
                "of another class"
            )


class TagRows(RowFormat):
    """Words and their tags, both joined by spaces."""

    task, columns, labels = "tag", ("words", "tags"), "word"
    unit, min_rows = "sentences", 500

    def scarcity_advice(self) -> str:
        return (
            "a tagger finds little beyond the names it saw; add sentences, or fine-tune a pretrained "
            "encoder (model.pretrained)"
        )

    def read(self, files: Sequence[Any], source: str | int | None, target: str | int | None) -> Rows:
        from regard.data.conll_reader import Conll

        paths = [
            Path(file).expanduser() for item in files for file in (item if isinstance(item, list) else [item])
        ]
        if not paths:
            raise DataError("no files are named; give at least one")
        for column in (source, target):
            if column_number(column) is None and column is not None:
                raise DataError(
                    f"a column of a CoNLL file is a number, counted from 1, got {column!r}; "
                    "set data.source, data.target"
                )
        if (source is None) != (target is None):
            raise DataError(
                "name both columns of the CoNLL files, data.source for words and data.target for tags, or "
                "neither"
            )
        columns = None if source is None or target is None else (int(source), int(target))
        parts = [Conll(path) if columns is None else Conll(path, columns=columns) for path in paths]
        return concatenate(parts)

    def finish(self, rows: Rows, data: Any) -> Rows:
        """Convert tags to `data.scheme`, repair them with `data.repair`, rename types by `data.labels`."""
        converted = self._converted(rows, data)
        return RenamedLabels(converted, tuple(data.labels.items()), tags=True) if data.labels else converted

    def _converted(self, rows: Rows, data: Any) -> Rows:
        from regard.data.conll_reader import Conll

        if isinstance(rows, ConcatRows):
            return ConcatRows(tuple(self._converted(part, data) for part in rows.parts))
        if isinstance(rows, RowRange):
            return replace(rows, rows=self._converted(rows.rows, data))
        return replace(rows, scheme=data.scheme, repair=data.repair) if isinstance(rows, Conll) else rows

    def check(self, rows: Rows, target: Tokenizer) -> None:
        for number, (words, tags) in _usable(rows):
            counts = len(words.split(" ")), len(tags.split(" "))
            if counts[0] != counts[1]:
                raise DataError(
                    f"{rows.place(number, 1)}: {counts[0]} words and {counts[1]} tags; each word has one tag"
                )


class EmbedRows(RowFormat):
    """Pairs of texts with the same meaning."""

    task, columns = "embed", ("text", "like it")
    also_reads = ("translate",)  # translations have the same meaning

    def scarcity_advice(self) -> str:
        return "an embedder overfits; add pairs, or fine-tune a pretrained encoder (model.pretrained)"


ROW_FORMATS: Registry[RowFormat] = Registry("task")
for _format in (RowFormat(), TextRows(), ClassifyRows(), TagRows(), EmbedRows()):
    ROW_FORMATS.add(_format.task)(_format)


def row_format_of(task: str | RowFormat) -> RowFormat:
    """Return the row format of a built-in task; a RowFormat is returned as it is."""
    if isinstance(task, RowFormat):
        return task
    if task not in ROW_FORMATS:
        raise OptionError(f"the task is one of {', '.join(ROW_FORMATS)}, got {task!r}")
    return ROW_FORMATS[task]


def _usable(rows: Rows) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield rows with readable text in every column, and their numbers."""
    for number, row in enumerate(rows):
        if all(text.strip() and not is_unreadable(text) for text in row):
            yield number, row


def _shown(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(labels[:SHOWN]) + more
