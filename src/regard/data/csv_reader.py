"""Reader of tables with quoted cells: CSV with any separator."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from regard.data.readers import MISSING, ROWS, Advance, Block, OneFile, ignore
from regard.data.text_files import BAD, LONG, MARK, is_unreadable, lines
from regard.errors import DataError

MAX_CELL = 1 << 20  # characters of a cell, including line ends inside quotes
_END = f"{MARK} end"  # a line after the last one


@dataclass(frozen=True)
class Csv(OneFile):
    """A table with commas (or another separator) and quoted cells; columns count from 1.

    `score` is a column of numbers beside the texts: `scores()` reads it, and rows below `least` are dropped.
    """

    columns: tuple[int, ...] = (1, 2)
    header: bool = False  # the first row names the columns
    score: int | None = None
    least: float | None = None
    separator: str = ","
    note: str = field(default="", compare=False)

    @property
    def paired(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.columns) == 2

    def layout(self) -> dict[str, Any]:
        score = None if self.score is None else self.score - 1
        layout = {
            "layout": "csv",
            "columns": [number - 1 for number in self.columns],
            "header": self.header,
            "least": self.least,
        }
        return layout | {"score": score} | ({"separator": self.separator} if self.separator != "," else {})

    def notes(self) -> list[str]:
        return [self.note] if self.note else []

    def blocks(self, advance: Advance = ignore) -> Iterator[Block]:
        rows = (row for _, row in self._rows(advance))
        while block := list(islice(rows, ROWS)):
            yield tuple([_cell(row, column) for row in block] for column in self.columns)

    def scores(self) -> list[float]:
        """The score of each row."""
        if self.score is None:
            raise DataError(f"{self.path} has no column of scores; name one")
        return [self._number(row, line) for line, row in self._rows(ignore)]

    def place(self, row: int, column: int) -> str:
        line = next((line for number, (line, _) in enumerate(self._rows(ignore)) if number == row), 0)
        return f"{self.path} line {line}, column {self.columns[column]}"

    def _rows(self, advance: Advance) -> Iterator[tuple[int, list[str]]]:
        """Yield the first line number and the cells of each row; [BAD] or [LONG] if a line of it is."""
        csv.field_size_limit(MAX_CELL)
        blocks = lines(self.path, advance=advance, invalid=_with_mark)
        ended = chain(chain.from_iterable(blocks), [_END])  # becomes part of a cell that is never closed
        reader = csv.reader((f"{line}\n" for line in ended), delimiter=self.separator)
        first, begin = self.header, 1
        while True:
            try:
                row = next(reader)
            except csv.Error:  # a cell is larger than MAX_CELL
                raise self._unclosed(begin) from None
            if row == [_END]:
                return
            text = "".join(row)
            if MARK in text:
                if _END in text:
                    raise self._unclosed(begin)
                row = [LONG if LONG in text else BAD]
            begin, line = reader.line_num + 1, begin
            if first:
                first = False
            elif row and (self.least is None or self._number(row, line) >= self.least):
                yield line, row

    def _unclosed(self, line: int) -> DataError:
        return DataError(
            f"line {line:,} of {self.path} opens a quotation mark that is never closed; close it, or write "
            'two ("") for one that belongs to the text'
        )

    def _number(self, row: list[str], line: int) -> float:
        assert self.score is not None
        text = _cell(row, self.score)
        try:
            return float(text)
        except ValueError:
            shown = "nothing" if text == MISSING else repr(text)
            raise DataError(
                f"{self.path} line {line}, column {self.score} holds {shown} where a number is expected"
            ) from None


def _with_mark(line: bytes) -> str:
    """A line that is not UTF-8, marked at its end: its quotation marks count for the lines after it."""
    return line.decode("utf-8", "replace") + MARK


def _cell(row: list[str], number: int) -> str:
    if is_unreadable(row[0]):
        return row[0]
    return row[number - 1].replace("\n", " ") if number <= len(row) else MISSING
