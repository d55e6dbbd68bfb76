"""Draw a matrix of attention weights on the terminal: a row per target word, a column per source word.

Weights are block characters of different density, readable on dark and light terminals, and in colour if the
terminal supports it.
"""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import TextIO

from torch import Tensor

from regard.errors import ShapeError

SHADES = " ░▒▓█"
# ANSI colours from blue to red; a tenth of the range each, the lowest without colour.
COLOURS = ("", *(f"38;5;{code}" for code in (24, 31, 38, 45, 220, 214, 208, 202, 196)))
CELL = 2  # columns of a weight, about as wide as high
LABEL, HEAD = 20, 12  # maximum columns of a target word and characters of a source word


def render(
    weights: Tensor,
    source: Sequence[str],
    target: Sequence[str],
    *,
    color: bool | None = None,
    width: int | None = None,
) -> str:
    """Return weights in [0, 1], (target words, source words), as lines of text.

    Source words are written downwards above their columns. Columns that do not fit into `width` (default: the
    terminal's) follow in further blocks, each with a heading.
    """
    if tuple(weights.shape) != (len(target), len(source)):
        raise ShapeError(
            f"weights must have shape ({len(target)}, {len(source)}), target × source words, got "
            f"{tuple(weights.shape)}"
        )
    color = shows_color(sys.stdout) if color is None else color
    width = shutil.get_terminal_size().columns if width is None else width
    labels = [_cut(word, LABEL) for word in target]
    margin = max(map(_width, labels), default=0)
    per_block = max(1, (width - margin - 1) // CELL)
    blocks = range(0, len(source), per_block)
    text: list[str] = []
    for start in blocks:
        columns = slice(start, start + per_block)
        if len(blocks) > 1:
            text.append(f"source words {start + 1} to {min(start + per_block, len(source))} of {len(source)}")
        text += [" " * (margin + 1) + line for line in _header(source[columns])]
        for label, row in zip(labels, weights[:, columns].tolist(), strict=True):
            cells = "".join(_cell(w, color) for w in row)
            text.append(" " * (margin - _width(label)) + label + " " + cells)
    return "\n".join(line.rstrip() for line in text)


def shows_color(stream: TextIO) -> bool:
    """True if a stream is a terminal with colour (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _cell(weight: float, color: bool) -> str:
    """Return the block of a weight: blank below 0.1, visible above."""
    value = min(max(weight, 0.0), 1.0)
    block = SHADES[round(value * (len(SHADES) - 1))] if value < 0.1 or value >= 0.375 else SHADES[1]
    colour = COLOURS[min(int(value * len(COLOURS)), len(COLOURS) - 1)]
    return f"\x1b[{colour}m{block * CELL}\x1b[0m" if color and colour and block != " " else block * CELL


def _header(words: Sequence[str]) -> list[str]:
    """Return source words written downwards, aligned at the bottom."""
    columns = [_characters(word) for word in words]
    columns = [c if len(c) <= HEAD else [*c[: HEAD - 1], "…"] for c in columns]
    height = max(map(len, columns), default=0)
    columns = [[""] * (height - len(c)) + c for c in columns]
    return ["".join(_fill(c[i], CELL) for c in columns) for i in range(height)]


def plain(word: str) -> str:
    """Return a word without control characters."""
    return "".join(_characters(word))


def _characters(word: str) -> list[str]:
    """Split into visible characters: combining marks and joined emoji stay with the character before."""
    characters: list[str] = []
    for c in word:
        joins = (
            c == "\u200d"
            or unicodedata.category(c) in ("Mn", "Me", "Mc")
            or "\U0001f3fb" <= c <= "\U0001f3ff"
        )
        if characters and (joins or characters[-1].endswith("\u200d")):
            characters[-1] += c
        elif unicodedata.category(c) not in ("Cc", "Cf") or joins:  # control characters move the cursor
            characters.append(c)
    return characters


def _width(text: str) -> int:
    """Return the number of terminal columns: two for CJK and emoji; combining marks take none."""
    from rich.cells import cell_len

    return sum(min(2, cell_len(character[0])) for character in _characters(text))


def _cut(word: str, max_width: int) -> str:
    characters = _characters(word)
    if _width(word) <= max_width:
        return "".join(characters)
    while characters and _width("".join(characters)) > max_width - 1:
        characters.pop()
    return "".join(characters) + "…"


def _fill(text: str, width: int) -> str:
    return text + " " * max(0, width - _width(text))
