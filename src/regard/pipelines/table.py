"""Find the text in tables and JSON lines: column, separator and header are detected as in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.column_detection import SEPARATORS, column_number, detect_table, text_column
from regard.data.reader_choice import JSON, TABLES
from regard.data.text_files import suffix
from regard.errors import DataError, OptionError
from regard.pipelines.input import Column, Field, Layout, WholeLine

_USUAL = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True)
class TextLocation:
    """Where the text is in the lines of files.

    Attributes:
        layout: how to get the text of a line.
        header: whether the first line is a header.
        names: the names of the columns, from the header.
        note: what was detected, to be reported.
    """

    layout: Layout
    header: bool = False
    names: tuple[str, ...] = ()
    note: str = ""


def locate_text(
    files: Sequence[Path], column: str | None = None, field: str | None = None, header: bool = False
) -> TextLocation:
    """Find the text by the suffixes of the files, --column and --field."""
    if column is not None and field is not None:
        raise OptionError("--column is for tables and --field for JSON lines; give one of them")
    kinds = sorted({suffix(path) for path in files})
    if len(kinds) > 1 and {*TABLES, *JSON} & set(kinds):
        shown = ", ".join(f".{kind}" if kind else "without suffix" for kind in kinds)
        raise OptionError(
            f"files of different kinds ({shown}) have their texts in different places; give them one by one"
        )
    kind = kinds[0] if len(kinds) == 1 else ""
    if column is None and kind in JSON:
        return TextLocation(Field(field or "text"))
    if field is not None or (column is None and kind not in TABLES):
        return TextLocation(WholeLine() if field is None else Field(field))
    locations = [
        _in_table(path, column, header) for path in files if not path.is_file() or path.stat().st_size
    ]
    first = locations[0] if locations else TextLocation(Column(1))
    if any((location.layout, location.header) != (first.layout, first.header) for location in locations):
        raise DataError(
            f"the column {column or 'text'!r} is at different places in these files; give them one by one"
        )
    return first


def _in_table(path: Path, column: str | None, header: bool) -> TextLocation:
    usual = _USUAL.get(suffix(path), "\t")
    if not path.is_file():
        number = column_number(column)
        if number is None:
            raise OptionError(f"{path} cannot be read twice, so its column must be a number; give --column N")
        return TextLocation(Column(number, usual, quotes=usual == ","), header)
    sample = detect_table(path, one_column=True)
    number, header = text_column(sample, column, header)
    names = tuple(sample.rows[0]) if header else ()
    shown = f"column {number}" + (f" {names[number - 1].strip()!r}" if number <= len(names) else "")
    note = f"{path.name}: columns separated by {SEPARATORS[sample.separator]}; the text is {shown}"
    quotes = suffix(path) == "csv" or sample.separator != "\t"
    assumed = sample.separator != usual or (column is None and sample.width > 1)
    return TextLocation(Column(number, sample.separator, quotes), header, names, note if assumed else "")
