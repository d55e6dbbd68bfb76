"""Attention weights as text for a terminal: a matrix of percentages, or the largest weights of each row."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Sequence

from regard.pictures.colors import ramp
from regard.pictures.shown_layers import ShownLayer, labels

LABEL = 14  # characters of a row's label
CELL = 8  # characters of a column
LARGEST = 4  # weights named of each row if the matrix is too wide
RESET = "\x1b[0m"


def terminal_text(
    layers: Sequence[ShownLayer],
    first: int,
    head: int | None,
    title: str = "",
    *,
    colored: bool = False,
    width: int | None = None,
) -> str:
    """Return one layer as text: of a head, or the mean of all.

    Args:
        layers: the layers to choose from; the last line names the others.
        first: the index of the layer.
        head: the head; None: the mean.
        title: the headline.
        colored: shade cells with ANSI colours.
        width: columns of the terminal; None: as the terminal says.
    """
    layer = layers[first]
    width = shutil.get_terminal_size().columns if width is None else width
    weights = (layer.weights.double().mean(0) if head is None else layer.weights[head]).tolist()
    which = f"mean of {len(layer.weights)} heads" if head is None else f"head {head}"
    lines = [title] if title else []
    lines.append(
        f"{layer.title}, {which}: rows are {layer.axes[0]}, columns {layer.axes[1]}; weights in percent"
    )
    rows, columns = labels(layer.rows), labels(layer.columns)
    sizes = [max(4, min(CELL, _width(label)) + 1) for label in columns]
    left = min(LABEL, max(map(_width, rows), default=0))
    if left + sum(sizes) <= width:
        lines.append(
            " " * left
            + "".join(_fit(label, size, right=True) for label, size in zip(columns, sizes, strict=True))
        )
        for label, row in zip(rows, weights, strict=True):
            cells = (_cell(w, size, colored) for w, size in zip(row, sizes, strict=True))
            lines.append(_fit(label, left) + "".join(cells))
    else:
        lines += [_largest(label, row, columns, left) for label, row in zip(rows, weights, strict=True)]
    if len(layers) > 1:
        lines.append(f"also: {'; '.join(other.title for other in layers if other is not layer)}")
    return "\n".join(lines)


def _cell(weight: float, size: int, colored: bool) -> str:
    percent = f"{100 * weight:.0f}" if weight >= 0.005 else "·"
    text = percent.rjust(size)
    if not colored:
        return text
    colors = ramp()
    level = round(max(0.0, min(1.0, weight)) * (len(colors) - 1))
    red, green, blue = (int(colors[level][i : i + 2], 16) for i in (1, 3, 5))
    ink = "38;2;255;255;255" if weight > 0.5 else "38;2;29;41;57"
    return f"\x1b[48;2;{red};{green};{blue};{ink}m{text}{RESET}"


def _largest(label: str, row: list[float], columns: list[str], left: int) -> str:
    """A row as its largest weights and the rest."""
    order = sorted(range(len(row)), key=lambda i: -row[i])[:LARGEST]
    parts = [f"{columns[i]} {100 * row[i]:.0f}" for i in order if row[i] >= 0.005]
    rest = sum(row) - sum(row[i] for i in order)
    return (
        f"{_fit(label, left)}  {' · '.join([*parts, *([f'rest {100 * rest:.0f}'] if rest >= 0.005 else [])])}"
    )


def _width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _fit(text: str, size: int, right: bool = False) -> str:
    """A text cut or padded to a number of columns; `right` aligns it there, after a space."""
    room = size - 1 if right else size
    if _width(text) > room:
        while text and _width(text) > room - 1:
            text = text[:-1]
        text += "…"
    space = " " * (size - _width(text))
    return space + text if right else text + space
