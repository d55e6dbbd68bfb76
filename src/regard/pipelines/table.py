"""Tables that are translated, labelled or embedded: where the text is, found as in training, and how rows are written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.column_detection import SEPARATORS, column_number, detect_table, text_column
from regard.data.reader_choice import JSON, TABLES
from regard.data.text_files import suffix
from regard.errors import DataError, OptionError
from regard.pipelines.input import Column, Field, Layout, Row, WholeLine

_CELL = re.compile(r"[\r\n\t]+")  # what a table with tabs has no place for
_USUAL = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True)
class Place:
    """Where the text is in the lines of files: the layout, and the header if the first line is one."""

    layout: Layout
    header: bool = False
    names: tuple[str, ...] = ()
    note: str = ""  # what was assumed


def find_place(
    files: Sequence[Path], column: str | None = None, field: str | None = None, header: bool = False
) -> Place:
    """By the names of the files, --column and --field; the separator and the header of a table are found as in training."""
    if column is not None and field is not None:
        raise OptionError("--column is for tables and --field for JSON lines; give one of them")
    kinds = sorted({suffix(path) for path in files})
    if len(kinds) > 1 and {*TABLES, *JSON} & set(kinds):
        shown = ", ".join(f".{each}" if each else "without ending" for each in kinds)
        raise OptionError(
            f"files of different kinds ({shown}) hold their texts in different places; give them one by one"
        )
    kind = kinds[0] if len(kinds) == 1 else ""
    if column is None and kind in JSON:
        return Place(Field(field or "text"))
    if field is not None or (column is None and kind not in TABLES):
        return Place(WholeLine() if field is None else Field(field))
    found = [_in_table(path, column, header) for path in files if not path.is_file() or path.stat().st_size]
    first = found[0] if found else Place(Column(1))
    if any((each.layout, each.header) != (first.layout, first.header) for each in found):
        raise DataError(
            f"the column {column or 'text'!r} stands at different places in these files; give them one by one"
        )
    return first


def _in_table(path: Path, column: str | None, header: bool) -> Place:
    usual = _USUAL.get(suffix(path), "\t")
    if not path.is_file():
        number = column_number(column)
        if number is None:
            raise OptionError(
                f"{path} is not a file that can be looked into first, so its column needs a number; give --column N"
            )
        return Place(Column(number, usual, quotes=usual == ","), header)
    sample = detect_table(path, alone=True)
    number, header = text_column(sample, column, header)
    names = tuple(sample.rows[0]) if header else ()
    shown = f"column {number}" + (f" {names[number - 1].strip()!r}" if number <= len(names) else "")
    note = f"{path.name}: columns separated by {SEPARATORS[sample.separator]}; the text is {shown}"
    quotes = suffix(path) == "csv" or sample.separator != "\t"
    assumed = sample.separator != usual or (column is None and sample.width > 1)
    return Place(Column(number, sample.separator, quotes), header, names, note if assumed else "")


def split_row(layout: Layout) -> Callable[[Row], list[str]]:
    """The cells of a row; of a line that is no row of a table, its text."""
    return (lambda row: layout.cells(row.line)) if isinstance(layout, Column) else lambda row: [row.text]


def table_line(row: Sequence[str], commas: bool) -> str:
    """A row as a line of a table: with commas, quoted where need be, or with tabs."""
    if not commas:
        return "\t".join(map(one_line, row)) + "\n"
    held = io.StringIO(newline="")
    csv.writer(held, lineterminator="\n").writerow(row)
    return held.getvalue()


def one_line(cell: str) -> str:
    """A cell without tabs and line ends."""
    return _CELL.sub(" ", cell)
