"""Comma-separated files, and columns of any table by name or number."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.data.files import LONG, check_file, lines, suffix
from regard.data.reading import MISSING, ROWS, Advance, Block, JsonLines, OneFile, Rows, Table, ignore
from regard.errors import DataError

LIMIT = 1 << 20  # characters of a cell, line ends inside quotes included


@dataclass(frozen=True)
class Csv(OneFile):
    """A file of comma-separated cells, quoted where they hold commas or line ends; columns are counted from 0.

    With `score`, a column of numbers beside the texts, `scores()` reads it, and `least` keeps the rows that have at least so much.
    """

    columns: tuple[int, ...] = (0, 1)
    header: bool = False  # the first row names the columns
    score: int | None = None
    least: float | None = None

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.columns) == 2

    def layout(self) -> dict[str, Any]:
        return {"layout": "csv", "columns": list(self.columns), "header": self.header, "least": self.least, "score": self.score}

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        rows = (row for _, row in self._rows(advance))
        while block := list(islice(rows, ROWS)):
            yield tuple([_cell(row, column) for row in block] for column in self.columns)

    def scores(self) -> list[float]:
        """The number of each row."""
        if self.score is None:
            raise DataError(f"{self.path} has no column of numbers beside its texts; name one")
        return [self._number(row, line) for line, row in self._rows(ignore)]

    def place(self, row: int, column: int) -> str:
        line = next((line for at, (line, _) in enumerate(self._rows(ignore)) if at == row), 0)
        return f"{self.path} line {line}, column {self.columns[column] + 1}"

    def _rows(self, advance: Advance) -> Iterator[tuple[int, list[str]]]:
        """Each row's cells, and the line it begins in."""
        csv.field_size_limit(LIMIT)
        reader = csv.reader(f"{line}\n" for line in chain.from_iterable(lines(self.path, advance=advance)))
        first, begin = self.header, 1
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:  # a quote that never ends, as a rule
                row = [LONG]
            begin, line = reader.line_num + 1, begin
            if first:
                first = False
            elif row and (self.least is None or self._number(row, line) >= self.least):
                yield line, row

    def _number(self, row: list[str], line: int) -> float:
        assert self.score is not None
        text = _cell(row, self.score)
        try:
            return float(text)
        except ValueError:
            shown = "nothing" if text == MISSING else repr(text)
            raise DataError(f"{self.path} line {line}, column {self.score + 1} holds {shown} where a number belongs") from None


def _cell(row: list[str], column: int) -> str:
    if row[0][:1] == "\udcff":  # the whole line could not be read
        return row[0].rstrip("\n")
    return row[column].replace("\n", " ") if column < len(row) else MISSING


def labelled(path: Path, text: str | int | None, label: str | int | None, default: tuple[int, int] = (0, 1)) -> Rows:
    """A .tsv, .csv or .jsonl of a user: the columns `text` and `label` by the names in its first line, by number from 1, or the
    first two. A name that is not there is an error, not the name of a language.
    """
    check_file(path)
    if suffix(path) in ("jsonl", "ndjson"):
        return JsonLines(path, (str(text or "text"), str(label or "label")), numbers=True)
    first = first_cells(path)
    given = [text, label]
    named = [each for each in given if each is not None and not str(each).isdigit()]
    for each in named:
        if each not in first:
            raise DataError(f"{path} line 1 names no column {each!r}; it has {_shown(first)}: name two of them, or count from 1")
    columns = tuple(_column(each, first, place, path) for each, place in zip(given, default, strict=True))
    kind = Csv if suffix(path) == "csv" else Table
    return kind(path, columns, header=bool(named) or {"text", "label"} <= {cell.lower() for cell in first})


def _column(given: str | int | None, first: list[str], place: int, path: Path) -> int:
    if given is None:
        usual = ("text", "label")[place] if place < 2 else ""
        return first.index(usual) if usual in first else place
    if str(given).isdigit():
        if not 1 <= int(given) <= len(first):
            raise DataError(f"{path} has {len(first)} columns in line 1 and no column {given}; columns are counted from 1")
        return int(given) - 1
    return first.index(str(given))


def first_cells(path: Path) -> list[str]:
    """The cells of the first line."""
    line = next(iter(lines(path)), [""])[0]
    return next(csv.reader(io.StringIO(line)), [""]) if suffix(path) == "csv" else line.split("\t")


def _shown(cells: list[str]) -> str:
    return ", ".join(repr(cell[:30]) for cell in cells[:8])
