"""A small matrix of weights for the terminal: a row for each target word, a column for each source word.

Weights are shades of a block, so that they read alike on dark and light terminals; colour is added where it can be shown.
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
COLOURS = (  # cold to hot
    "",
    "38;5;24",
    "38;5;31",
    "38;5;38",
    "38;5;45",
    "38;5;220",
    "38;5;214",
    "38;5;208",
    "38;5;202",
    "38;5;196",
)
CELL = 2  # places a weight takes: about as wide as high
LABEL, HEAD = 20, 12  # the most places a target word takes, and the most letters of a source word


def render(
    weights: Tensor,
    source: Sequence[str],
    target: Sequence[str],
    *,
    color: bool | None = None,
    width: int | None = None,
) -> str:
    """(target words, source words) in [0, 1] as lines of text; source words run downwards above their columns.

    Columns that do not fit into `width` (the terminal's) come in further parts below, each saying which it shows.
    """
    if tuple(weights.shape) != (len(target), len(source)):
        raise ShapeError(
            f"weights of {len(target)} target and {len(source)} source words are not {tuple(weights.shape)}"
        )
    color = shows_color(sys.stdout) if color is None else color
    width = shutil.get_terminal_size().columns if width is None else width
    labels = [_cut(word, LABEL) for word in target]
    margin = max(map(_width, labels), default=0)
    room = max(1, (width - margin - 1) // CELL)
    parts = range(0, len(source), room)
    text: list[str] = []
    for start in parts:
        columns = slice(start, start + room)
        if len(parts) > 1:
            text.append(f"source words {start + 1} to {min(start + room, len(source))} of {len(source)}")
        text += [" " * (margin + 1) + line for line in _header(source[columns])]
        for label, row in zip(labels, weights[:, columns].tolist(), strict=True):
            cells = "".join(_cell(w, color) for w in row)
            text.append(" " * (margin - _width(label)) + label + " " + cells)
    return "\n".join(line.rstrip() for line in text)


def shows_color(stream: TextIO) -> bool:
    """Whether a stream is a terminal that wants colour (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _cell(weight: float, color: bool) -> str:
    """0 is blank, and whatever is above a tenth is seen."""
    at = min(max(weight, 0.0), 1.0)
    block = SHADES[round(at * (len(SHADES) - 1))] if at < 0.1 or at >= 0.375 else SHADES[1]
    colour = COLOURS[min(int(at * len(COLOURS)), len(COLOURS) - 1)]
    return f"\x1b[{colour}m{block * CELL}\x1b[0m" if color and colour and block != " " else block * CELL


def _header(words: Sequence[str]) -> list[str]:
    """Source words written downwards, their last letters on one line."""
    columns = [_letters(word) for word in words]
    columns = [c if len(c) <= HEAD else [*c[: HEAD - 1], "…"] for c in columns]
    high = max(map(len, columns), default=0)
    columns = [[""] * (high - len(c)) + c for c in columns]
    return ["".join(_fill(c[i], CELL) for c in columns) for i in range(high)]


def plain(word: str) -> str:
    """A word without the characters that would move the cursor."""
    return "".join(_letters(word))


def _letters(word: str) -> list[str]:
    """Characters as they are seen: marks, joiners and what they join stay with the character before."""
    found: list[str] = []
    for c in word:
        joins = (
            c == "\u200d"
            or unicodedata.category(c) in ("Mn", "Me", "Mc")
            or "\U0001f3fb" <= c <= "\U0001f3ff"
        )
        if found and (joins or found[-1].endswith("\u200d")):
            found[-1] += c
        elif unicodedata.category(c) not in ("Cc", "Cf") or joins:  # control characters would move the cursor
            found.append(c)
    return found


def _width(text: str) -> int:
    """Places on a terminal: two for CJK and emoji; a letter with its marks is one letter."""
    from rich.cells import cell_len

    return sum(min(2, cell_len(letter[0])) for letter in _letters(text))


def _cut(word: str, most: int) -> str:
    letters = _letters(word)
    if _width(word) <= most:
        return "".join(letters)
    while letters and _width("".join(letters)) > most - 1:
        letters.pop()
    return "".join(letters) + "…"


def _fill(letter: str, width: int) -> str:
    return letter + " " * max(0, width - _width(letter))
