"""A run as a file: the picture of one head as SVG, HTML or PDF, or all weights as NPZ."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from regard.decoding.attention_weights import AXES, TITLES, kind_of
from regard.errors import OptionError
from regard.explorer.run import SIDES, Run, Side, merge_tokens
from regard.pictures.labels import clean
from regard.pictures.matrix_picture import MatrixPicture
from regard.pictures.picture import check_matplotlib, html_page

MEDIA_TYPES = {
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
    "pdf": "application/pdf",
    "npz": "application/octet-stream",
}
LEVELS = ("words", "tokens")


def export(run: Run, index: int, head: int | None, level: str, kind: str) -> bytes:
    """The file of a map: of one head, or of the mean of all heads for None.

    Args:
        level: "words" merges tokens into words, "tokens" does not.
        kind: "svg", "html", "pdf" or "npz"; npz holds all maps of the run and their tokens.
    """
    if kind not in MEDIA_TYPES:
        raise OptionError(f"there is no export as {kind[:20]!r}; choose {', '.join(MEDIA_TYPES)}")
    if level not in LEVELS:
        raise OptionError(f"level must be words or tokens, got {level[:20]!r}")
    if kind == "npz":
        return _arrays(run)
    picture = head_picture(run, index, head, level)
    if kind == "svg":
        return picture.svg().encode()
    if kind == "html":
        return html_page([picture]).encode()
    check_matplotlib("a PDF", ", or export SVG")
    content = io.BytesIO()
    picture.plot().savefig(content, format="pdf")
    return content.getvalue()


def head_picture(run: Run, index: int, head: int | None, level: str) -> MatrixPicture:
    """The heat map of one head, or of the mean of all."""
    weights = run.weights(index, head)
    kind = kind_of(run.names[index])
    row_side, column_side = (run.sides[side] for side in SIDES[kind])
    rows, columns = _units(row_side, level, weights.shape[0]), _units(column_side, level, weights.shape[1])
    merged = merge_tokens(weights, [tokens for _, tokens in rows], [tokens for _, tokens in columns])
    layer = [name for name in run.names if kind_of(name) == kind].index(run.names[index]) + 1
    which = f"mean of {len(run.map(index))} heads" if head is None else f"head {head + 1}"
    return MatrixPicture(
        merged,
        [text for text, _ in rows],
        [text for text, _ in columns],
        title=run.text,
        note=f"{TITLES[kind]}, layer {layer}, {which}",
        row_title=AXES[kind][0],
        column_title=AXES[kind][1],
    )


def _units(side: Side, level: str, count: int) -> list[tuple[str, list[int]]]:
    """Label and tokens of each row or column; the map has `count` tokens of the side."""
    if level == "tokens":
        return [(clean(token), [i]) for i, token in enumerate(side.tokens[:count])]
    return [
        (clean(word["text"]), word["tokens"]) for word in side.words if all(t < count for t in word["tokens"])
    ]


def _arrays(run: Run) -> bytes:
    """All maps by name, (heads, rows, columns), and the tokens of each side as `tokens.source` etc."""
    content: dict[str, Any] = {name: run.map(i).float().numpy() for i, name in enumerate(run.names)}
    content |= {f"tokens.{name}": np.array(side.tokens, dtype=np.str_) for name, side in run.sides.items()}
    file = io.BytesIO()
    np.savez_compressed(file, **content)
    return file.getvalue()
