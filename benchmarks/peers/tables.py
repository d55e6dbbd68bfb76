"""Cells, footnotes and Markdown of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NONE = "–"  # a cell without a number


def markdown_table(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]


def footnote(notes: list[str], note: str) -> str:
    """The mark of a footnote, such as [2]; a note that is not in the list yet is added to it."""
    if note not in notes:
        notes.append(note)
    return f"[{notes.index(note) + 1}]"


def grouped(number: float | None) -> str:
    """A rounded number with spaces between thousands."""
    return NONE if number is None else f"{number:,.0f}".replace(",", " ")


def mebibytes(size: float | None) -> str:
    """Bytes in MiB, rounded."""
    return NONE if size is None else f"{size / 2**20:.0f}"


def setting_text(setting: Mapping[str, object]) -> str:
    """A setting as key=value words."""
    return " ".join(f"{key}={value}" for key, value in setting.items())
