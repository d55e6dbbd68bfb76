"""Labels in a table for a person to look through: what was suggested and how sure it is, the least sure first.

Columns: label, suggested, confidence, reviewed, id, text. Correct `label`, or put anything into `reviewed` where it is right:
such a row is an example from then on. A table with the columns label and text alone is a list of examples as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.text_files import lines
from regard.errors import DataError

COLUMNS = ("label", "suggested", "confidence", "reviewed", "id", "text")


class Row(NamedTuple):
    """A text with the label that holds now."""

    label: str
    text: str
    suggested: str = ""
    confidence: float = 1.0
    reviewed: bool = True
    id: str = ""


def table(rows: Iterable[Row]) -> str:
    """The table as text, the least sure first; of rows that are as sure, in their order."""
    found: list[tuple[str, ...]] = [COLUMNS]
    for row in sorted(rows, key=lambda row: row.confidence):
        mark = "x" if row.reviewed else ""
        found.append((row.label, row.suggested, f"{row.confidence:.4f}", mark, row.id, row.text))
    return "".join("\t".join(map(plain, cells)) + "\n" for cells in found)


def plain(text: str) -> str:
    """A text as it stands in a cell: tabs and line ends are spaces, and spaces in a row are one."""
    return " ".join(text.split())


def read(path: Path) -> list[Row]:
    """The rows of a table. Those that a person has marked or changed are reviewed; so is every row of a list of examples."""
    found: list[Row] = []
    header: list[str] = []
    number = 0
    for block in lines(path):
        for line in block:
            number += 1
            if line[:1] == "\udcff":
                raise DataError(f"line {number} of {path} is not UTF-8, or far too long; mend it")
            cells = line.split("\t")
            if not header:
                header = _header(path, cells)
            elif line.strip():
                found.append(_row(path, number, header, cells))
    return found


def examples(rows: Sequence[Row]) -> dict[str, str]:
    """Labels by text, of what a person has said. One text with two labels is refused."""
    said: dict[str, str] = {}
    for row in rows:
        text = plain(row.text)
        if row.reviewed and said.setdefault(text, row.label) != row.label:
            raise DataError(
                f"{text[:60]!r} has two labels, {said[text]!r} and {row.label!r}; correct one of them"
            )
    return said


def _header(path: Path, cells: list[str]) -> list[str]:
    named = [cell.strip().lower() for cell in cells]
    if "label" not in named or "text" not in named:
        raise DataError(
            f"line 1 of {path} must name the columns label and text, with a tab between; it has {cells[0][:60]!r}"
        )
    return named


def _row(path: Path, number: int, header: list[str], cells: list[str]) -> Row:
    if len(cells) != len(header):
        raise DataError(
            f"line {number} of {path} has {len(cells)} columns where line 1 has {len(header)}; mend it"
        )
    cell = dict(zip(header, (each.strip() for each in cells), strict=True))
    if not cell["label"] or not cell["text"]:
        empty = "label" if not cell["label"] else "text"
        raise DataError(
            f"line {number}, column {header.index(empty) + 1} of {path} has no {empty}; fill it in, or remove the line"
        )
    suggested = cell.get("suggested", "")
    try:
        confidence = float(cell.get("confidence") or 1.0)
    except ValueError:
        column = header.index("confidence") + 1
        raise DataError(
            f"line {number}, column {column} of {path} is no number: {cell['confidence']!r}; mend it"
        ) from None
    reviewed = "suggested" not in header or cell["label"] != suggested or bool(cell.get("reviewed"))
    return Row(cell["label"], cell["text"], suggested, confidence, reviewed, cell.get("id", ""))
