"""One attention matrix as a heat map, as lines between tokens, or as highlighted text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.arguments import one_of
from regard.errors import OptionError, ShapeError
from regard.pictures.canvas import Canvas, Cells, curve
from regard.pictures.colors import LEVELS, is_high, level
from regard.pictures.labels import clean, ems, label_step, merge_labels, shorten
from regard.pictures.picture import Picture, check_matplotlib

VIEWS = ("heatmap", "lines", "text")
MAX_TOKENS = 96  # per side; longer inputs are merged
MAX_TITLED = 1024  # cells of a matrix whose weights are shown under the mouse
MAX_NUMBERED = 150  # cells of a matrix whose weights are written in them
MIN_LINE = 0.03  # weights below this fraction of the largest get no line
MARGIN = 16.0


class Merged(NamedTuple):
    """A matrix of at most MAX_TOKENS × MAX_TOKENS cells and its labels."""

    weights: Tensor
    rows: list[str]
    columns: list[str]
    note: str


@dataclass(frozen=True, eq=False)
class MatrixPicture(Picture):
    """A matrix of weights (rows, columns): a row per query, a column per key.

    Args:
        weights: (rows, columns).
        rows: the tokens of the rows.
        columns: the tokens of the columns.
        view: "heatmap"; "lines" between tokens, as wide as their weight; "text": the tokens of the columns,
            coloured by the mean weight over the rows.
        title: the headline.
        note: a line below it, such as the layer and head.
        row_title: what rows are.
        column_title: what columns are.
    """

    weights: Tensor
    rows: Sequence[str]
    columns: Sequence[str]
    view: str = "heatmap"
    title: str = ""
    note: str = ""
    row_title: str = "query"
    column_title: str = "key"

    def __post_init__(self) -> None:
        one_of("view", self.view, VIEWS)
        shape = tuple(self.weights.shape)
        if shape != (len(self.rows), len(self.columns)):
            raise ShapeError(
                f"weights of {len(self.rows)} rows and {len(self.columns)} columns must have shape "
                f"({len(self.rows)}, {len(self.columns)}), got {shape}"
            )
        if 0 in shape:
            raise OptionError("there is nothing to draw: the matrix is empty; give a text with tokens")

    @property
    def value_range(self) -> tuple[float, float]:
        """The values at both ends of the colour scale: from 0, or the smallest if it is negative."""
        values = self.merged().weights
        return min(0.0, float(values.min())), float(values.max())

    def merged(self) -> Merged:
        """The matrix as it is drawn: neighbours merged so that at most MAX_TOKENS rows and columns remain."""
        weights, notes = self.weights.detach().to("cpu", torch.float64).nan_to_num(0.0, 0.0, 0.0), []
        labels = []
        for axis, tokens in enumerate((self.rows, self.columns)):
            groups = groups_of(len(tokens), MAX_TOKENS)
            weights = merge(weights, axis, groups)
            labels.append(merge_labels(tokens, groups))
            if len(groups) < len(tokens):
                what = ("row", "column")[axis]
                notes.append(f"each {what} is up to {groups[0][1]} of {len(tokens):,} tokens")
        return Merged(weights, labels[0], labels[1], "; ".join(notes))

    def canvas(self) -> Canvas:
        canvas = Canvas(self.title or "attention weights")
        top = headline(canvas, self.title, "; ".join(filter(None, (self.note, self.merged().note))))
        {"heatmap": _heat_map, "lines": _lines, "text": _text}[self.view](self, canvas, top)
        return canvas

    def plot(self, axes: Any = None) -> Any:
        """Draw with matplotlib, into `axes` if given; return the `matplotlib.figure.Figure`."""
        check_matplotlib()
        from regard.pictures import figures

        if self.view == "text":
            if axes is not None:
                raise OptionError("view='text' makes its own figure; leave axes out, or take another view")
            return super().plot()
        return figures.heat_map(self, axes) if self.view == "heatmap" else figures.lines(self, axes)


def groups_of(count: int, most: int) -> list[tuple[int, int]]:
    """Split `count` neighbours into at most `most` groups (start, stop), equal except for the last."""
    size = -(-count // most)
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def merge(weights: Tensor, axis: int, groups: Sequence[tuple[int, int]]) -> Tensor:
    """Merge neighbours of (…, rows, columns): the mean of rows (axis 0), the sum of columns (axis 1).

    Rows that sum to 1 still do.
    """
    if len(groups) == weights.shape[axis - 2]:
        return weights
    slices = [weights.narrow(axis - 2, start, stop - start) for start, stop in groups]
    merged = [x.mean(axis - 2) if axis == 0 else x.sum(axis - 2) for x in slices]
    return torch.stack(merged, axis - 2)


def headline(canvas: Canvas, title: str, note: str) -> float:
    """Write the headline and the note; return the y below them."""
    y = 10.0
    if title:
        y += 16
        canvas.text(MARGIN, y, shorten(clean(title), 60), size=14, bold=True)
    if note:
        y += 17
        canvas.text(MARGIN, y, note, "mute", size=11.5)
    return y + 8


def scale_bar(canvas: Canvas, x: float, y: float, low: float, high: float, what: str = "weight") -> None:
    """Draw the colour scale with the values at its ends."""
    for step in range(LEVELS + 1):
        canvas.rectangle(x + step * 4, y, 4.3, 9, f"w{step}")
    canvas.rectangle(x, y, (LEVELS + 1) * 4 + 0.3, 9, "frame")
    canvas.text(x, y + 21, f"{low:.2g}", "mute", size=10)
    canvas.text(x + (LEVELS + 1) * 4, y + 21, f"{high:.2g}", "mute", size=10, anchor="end")
    canvas.text(x + (LEVELS + 1) * 4 + 8, y + 8.5, what, "mute", size=10.5)


def draw_cells(
    canvas: Canvas, x: float, y: float, cell: tuple[float, float], weights: Tensor, low: float, high: float
) -> None:
    """Draw a matrix without labels as one path per step of the ramp; equal neighbours are one rectangle."""
    width, height = cell
    runs: dict[int, list[tuple[float, float, float]]] = {}
    for i, row in enumerate(weights.tolist()):
        start = 0
        for step, equal in groupby(level(value, low, high) for value in row):
            count = len(list(equal))
            runs.setdefault(step, []).append((x + start * width, y + i * height, count * width))
            start += count
    rows, columns = weights.shape
    canvas.rectangle(x, y, columns * width, rows * height, "w0")
    for step in sorted(runs):
        if step:
            canvas.add(Cells(tuple(runs[step]), height, f"w{step}"))
    canvas.rectangle(x, y, columns * width, rows * height, "frame")


def _heat_map(picture: MatrixPicture, canvas: Canvas, top: float) -> None:
    weights, rows, columns, _ = picture.merged()
    low, high = picture.value_range
    cell = min(34.0, max(7.0, 600 / max(len(rows), len(columns))))
    size = min(12.5, max(8.0, cell * 0.8))
    step = label_step(cell, size + 1)
    row_labels, column_labels = [shorten(label) for label in rows], [shorten(label) for label in columns]
    left = MARGIN + 18 + max(ems(label) for label in row_labels) * size + 6
    slope = 0.77  # sine of the labels' angle, 50°
    y = top + 20 + max(ems(label) for label in column_labels[::step]) * size * slope + 6
    reach = left + (len(columns) - 0.5) * cell + ems(column_labels[-1]) * size * 0.64 + 8
    for j, label in list(enumerate(column_labels))[::step]:
        x = left + (j + 0.5) * cell
        canvas.text(x + 0.3 * size, y - 5, label, size=size, turn=-50)
    for i, label in list(enumerate(row_labels))[::step]:
        canvas.text(left - 6, y + (i + 0.5) * cell + 0.35 * size, label, size=size, anchor="end")
    canvas.text(left, top + 10, f"{picture.column_title} →", "mute", size=10.5)
    middle = y + len(rows) * cell / 2
    if len(rows) > 2:
        canvas.text(
            MARGIN + 8, middle, f"← {picture.row_title}", "mute", size=10.5, turn=-90, anchor="middle"
        )
    if weights.numel() <= MAX_TITLED:
        _titled_cells(picture, canvas, left, y, cell)
    else:
        draw_cells(canvas, left, y, (cell, cell), weights, low, high)
    bottom = y + len(rows) * cell
    scale_bar(canvas, left, bottom + 14, low, high)
    canvas.reach(max(reach, left + 160), bottom + 38)


def _titled_cells(picture: MatrixPicture, canvas: Canvas, left: float, top: float, cell: float) -> None:
    """Cells that show their weight under the mouse, and as a number where there is room."""
    weights, rows, columns, _ = picture.merged()
    low, high = picture.value_range
    numbers = weights.numel() <= MAX_NUMBERED and cell >= 28
    for i, row in enumerate(weights.tolist()):
        for j, value in enumerate(row):
            step = level(value, low, high)
            x, y = left + j * cell, top + i * cell
            title = f"{rows[i]} → {columns[j]}: {value:.4f}"
            canvas.rectangle(x + 0.75, y + 0.75, cell - 1.5, cell - 1.5, f"w{step}", radius=2, title=title)
            if numbers and abs(value) >= 0.005:
                style = "high" if is_high(step) else "low"
                shown = f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2g}"
                canvas.text(x + cell / 2, y + cell / 2 + 3.5, shown, style, size=10, anchor="middle")
    canvas.rectangle(left, top, len(columns) * cell, len(rows) * cell, "frame", radius=3)


def _lines(picture: MatrixPicture, canvas: Canvas, top: float) -> None:
    """Queries on the left, keys on the right, a curve for each weight that is not negligible."""
    weights, rows, columns, _ = picture.merged()
    high = picture.value_range[1]
    pitch = min(25.0, max(9.0, 680 / max(len(rows), len(columns))))
    size = min(13.0, max(8.0, pitch * 0.78))
    row_labels, column_labels = [shorten(label) for label in rows], [shorten(label) for label in columns]
    left = MARGIN + max(ems(picture.row_title) * 10.5, *(ems(label) * size for label in row_labels)) + 8
    right = left + min(320.0, max(170.0, pitch * max(len(rows), len(columns)) * 0.55))
    top += 22
    height = pitch * max(len(rows), len(columns))
    starts = [top + (height - pitch * len(rows)) / 2, top + (height - pitch * len(columns)) / 2]
    canvas.text(left - 8, top - 10, picture.row_title, "mute", size=10.5, anchor="end")
    canvas.text(right + 8, top - 10, picture.column_title, "mute", size=10.5)
    strong_last = sorted(
        (value, i, j) for i, row in enumerate(weights.tolist()) for j, value in enumerate(row)
    )
    for value, i, j in strong_last:
        if not high > 0 or value < MIN_LINE * high:
            continue
        share = value / high
        ends = (left, starts[0] + (i + 0.5) * pitch), (right, starts[1] + (j + 0.5) * pitch)
        options = {"width": max(0.5, min(pitch * 0.7, 7.0) * share), "opacity": 0.12 + 0.78 * share}
        title = f"{rows[i]} → {columns[j]}: {value:.4f}" if weights.numel() <= MAX_TITLED else ""
        canvas.path(*curve(*ends[0], *ends[1]), style="weight", title=title, **options)
    for i, label in enumerate(row_labels):
        y = starts[0] + (i + 0.5) * pitch + 0.35 * size
        canvas.text(left - 7, y, label, size=size, anchor="end")
    for j, label in enumerate(column_labels):
        canvas.text(right + 7, starts[1] + (j + 0.5) * pitch + 0.35 * size, label, size=size)
    widest = f"widest line: {high:.2f}; lines below {MIN_LINE * high:.2g} are left out"
    canvas.text(MARGIN, top + height + 22, widest, "mute", size=10.5)
    canvas.reach(0, top + height + 24)


def _text(picture: MatrixPicture, canvas: Canvas, top: float) -> None:
    """The tokens of the columns as running text, each on the colour of its mean weight."""
    weights = picture.weights.detach().to("cpu", torch.float64).nan_to_num(0.0, 0.0, 0.0).mean(0)
    low, high = min(0.0, float(weights.min())), float(weights.max())
    x, y, size, line = MARGIN, top + 8, 13.5, 40.0
    digits = 2 if high >= 0.1 else 3
    for token, value in zip(picture.columns, weights.tolist(), strict=True):
        label = shorten(clean(token), 20)
        width = max(22.0, ems(label) * size + 10)
        if x + width > 720:
            x, y = MARGIN, y + line
        step = level(value, low, high)
        title = f"{label}: {value:.4f}"
        canvas.rectangle(x, y, width, 22, f"w{step}", radius=4, title=title)
        style = "high" if is_high(step) else "low"
        canvas.text(x + width / 2, y + 15.5, label, style, size=size, anchor="middle")
        shown = f"{value:.{digits}f}".replace("0.", ".", 1)
        canvas.text(x + width / 2, y + 32, shown, "mute", size=9, anchor="middle")
        x += width + 4
    scale_bar(canvas, MARGIN, y + line + 8, low, high)
    canvas.reach(0, y + line + 32)
