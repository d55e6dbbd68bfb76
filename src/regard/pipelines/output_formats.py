"""What output formats share: the interface, and lines of tables and of JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from regard.pipelines.input import Column, Layout, Row

R = TypeVar("R", contravariant=True)

LINE_ENDS = re.compile(r"[\r\n]+")
_NOT_IN_TSV = re.compile(r"[\r\n\t]+")


class OutputFormat(Protocol[R]):
    """How results are written, always as complete lines."""

    def header(self) -> str:
        """Return what precedes the first result."""
        ...

    def write(self, result: R) -> str: ...


class WithoutHeader:
    """A format without a header."""

    def header(self) -> str:
        return ""


def split_row(layout: Layout) -> Callable[[Row], list[str]]:
    """Return a function from a row to its cells; to its text if lines are not rows of a table."""
    return (lambda row: layout.cells(row.line)) if isinstance(layout, Column) else lambda row: [row.text]


def table_line(cells: Sequence[str], commas: bool) -> str:
    """Return a line of a table: separated by commas and quoted if necessary, or by tabs."""
    if not commas:
        return "\t".join(map(one_line, cells)) + "\n"
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def one_line(cell: str) -> str:
    """Replace tabs and line ends of a cell by spaces."""
    return _NOT_IN_TSV.sub(" ", cell)


def json_line(record: dict[str, Any]) -> str:
    """Return a line of JSON; unpaired surrogates, which UTF-8 cannot encode, are escaped."""
    try:
        return json.dumps(record, ensure_ascii=False).encode().decode() + "\n"
    except UnicodeEncodeError:
        return json.dumps(record) + "\n"
