"""Tables of suggested labels for human review (TSV), least confident first.

Columns: label, suggested, confidence, reviewed, id, text. To review a row, correct `label`, or write anything
into `reviewed` if it is right; the row is then an example. A table with only label and text holds examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.text_files import is_unreadable, lines
from regard.errors import DataError

COLUMNS = ("label", "suggested", "confidence", "reviewed", "id", "text")


class LabelRow(NamedTuple):
    """A text and its current label."""

    label: str
    text: str
    suggested: str = ""
    confidence: float = 1.0
    reviewed: bool = True
    id: str = ""


def format_table(rows: Iterable[LabelRow]) -> str:
    """Format rows as TSV, least confident first; ties keep their order."""
    cells: list[tuple[str, ...]] = [COLUMNS]
    for row in sorted(rows, key=lambda row: row.confidence):
        mark = "x" if row.reviewed else ""
        cells.append((row.label, row.suggested, f"{row.confidence:.4f}", mark, row.id, row.text))
    return "".join("\t".join(map(normalize_space, row)) + "\n" for row in cells)


def normalize_space(text: str) -> str:
    """Collapse all white space, including tabs and line ends, into single spaces."""
    return " ".join(text.split())


def read_table(path: Path) -> list[LabelRow]:
    """Read a table. Marked or changed rows count as reviewed, as do all rows of a list of examples."""
    rows: list[LabelRow] = []
    header: list[str] = []
    number = 0
    for block in lines(path):
        for line in block:
            number += 1
            if is_unreadable(line):
                raise DataError(f"line {number} of {path} is not UTF-8, or far too long; fix it")
            cells = line.split("\t")
            if not header:
                header = _header(path, cells)
            elif line.strip():
                rows.append(_row(path, number, header, cells))
    return rows


def reviewed_labels(rows: Sequence[LabelRow]) -> dict[str, str]:
    """Map texts to reviewed labels. A text with two different labels is an error."""
    labels: dict[str, str] = {}
    for row in rows:
        text = normalize_space(row.text)
        if row.reviewed and labels.setdefault(text, row.label) != row.label:
            raise DataError(
                f"{text[:60]!r} has two labels, {labels[text]!r} and {row.label!r}; correct one of them"
            )
    return labels


def _header(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    if "label" not in names or "text" not in names:
        raise DataError(
            f"line 1 of {path} must name the tab-separated columns label and text, got {cells[0][:60]!r}"
        )
    return names


def _row(path: Path, number: int, header: list[str], cells: list[str]) -> LabelRow:
    if len(cells) != len(header):
        raise DataError(
            f"line {number} of {path} has {len(cells)} columns but line 1 has {len(header)}; fix it"
        )
    cell = dict(zip(header, (text.strip() for text in cells), strict=True))
    if not cell["label"] or not cell["text"]:
        empty = "label" if not cell["label"] else "text"
        raise DataError(
            f"line {number}, column {header.index(empty) + 1} of {path} has no {empty}; "
            "fill it in, or remove the line"
        )
    suggested = cell.get("suggested", "")
    try:
        confidence = float(cell.get("confidence") or 1.0)
    except ValueError:
        column = header.index("confidence") + 1
        raise DataError(
            f"line {number}, column {column} of {path} is not a number: {cell['confidence']!r}; fix it"
        ) from None
    reviewed = "suggested" not in header or cell["label"] != suggested or bool(cell.get("reviewed"))
    return LabelRow(cell["label"], cell["text"], suggested, confidence, reviewed, cell.get("id", ""))
