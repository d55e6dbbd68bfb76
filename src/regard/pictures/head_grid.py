"""Every head of several layers as small matrices: a row per layer, a column per head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import OptionError, ShapeError
from regard.pictures.canvas import Canvas
from regard.pictures.labels import clean, ems, shorten
from regard.pictures.matrix_picture import (
    MARGIN,
    draw_cells,
    groups_of,
    headline,
    merge,
    scale_bar,
)
from regard.pictures.picture import Picture, check_matplotlib

MAX_CELLS = 60_000  # of all matrices together; beyond it, neighbouring cells are merged
GAP = 12.0


@dataclass(frozen=True, eq=False)
class HeadGrid(Picture):
    """Matrices of weights by layer and head, on one colour scale.

    Args:
        layers: name of a layer → weights (heads, rows, columns).
        title: the headline.
        note: a line below it.
        columns: the headings of the columns; by default head 0, head 1, …
    """

    layers: Mapping[str, Tensor]
    title: str = ""
    note: str = ""
    columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.layers:
            raise OptionError("there is nothing to draw: no layer was given")
        if self.columns and len(self.columns) != self.heads:
            raise OptionError(f"columns must have {self.heads} names, one per head, got {len(self.columns)}")
        for name, weights in self.layers.items():
            if weights.ndim != 3:
                shape = tuple(weights.shape)
                raise ShapeError(f"the weights of {name} must be (heads, rows, columns), got {shape}")
            if not weights.numel():
                raise OptionError(f"there is nothing to draw: the weights of {name} are empty")

    @property
    def heads(self) -> int:
        """The largest number of heads of a layer."""
        return max((len(weights) for weights in self.layers.values()), default=0)

    def column(self, head: int, short: bool = False) -> str:
        """The heading of a column."""
        if self.columns:
            return shorten(clean(self.columns[head]), 10)
        return f"{head}" if short else f"head {head}"

    def panels(self) -> dict[str, Tensor]:
        """The weights as they are drawn: neighbouring cells merged, so that about MAX_CELLS remain in all."""
        count = sum(len(weights) for weights in self.layers.values())
        max_side = max(8, int(math.sqrt(MAX_CELLS / count)))  # rows or columns of a panel
        panels = {}
        for name, weights in self.layers.items():
            weights = weights.detach().to("cpu", torch.float64).nan_to_num(0.0, 0.0, 0.0)
            for axis in (0, 1):
                weights = merge(weights, axis, groups_of(weights.shape[axis - 2], max_side))
            panels[name] = weights
        return panels

    @property
    def value_range(self) -> tuple[float, float]:
        """The values at both ends of the colour scale, which all panels share."""
        panels = self.panels().values()
        return min(0.0, *(float(w.min()) for w in panels)), max(float(w.max()) for w in panels)

    def canvas(self) -> Canvas:
        canvas, panels = Canvas(self.title or "attention by layer and head"), self.panels()
        low, high = self.value_range
        heads = self.heads
        side = min(150.0, max(46.0, 860 / heads - GAP))
        names = [shorten(clean(name), 16) for name in panels]
        left = MARGIN + max(ems(name) for name in names) * 11.5 + 10
        y = headline(canvas, self.title, self.note) + 16
        for head in range(heads):
            x = left + head * (side + GAP) + side / 2
            name = self.column(head, short=side < 60)
            canvas.text(x, y, name, "mute", size=10.5, anchor="middle")
        y += 8
        for name, weights in zip(names, panels.values(), strict=True):
            rows, columns = weights.shape[1:]
            cell = side / max(rows, columns)
            size = (cell, max(cell, min(16.0, side / rows)) if rows < columns / 4 else cell)
            for head, matrix in enumerate(weights):
                draw_cells(canvas, left + head * (side + GAP), y, size, matrix, low, high)
            canvas.text(left - 9, y + rows * size[1] / 2 + 4, name, size=11.5, anchor="end")
            y += rows * size[1] + GAP
        scale_bar(canvas, left, y + 4, low, high)
        canvas.reach(left + 200, y + 28)
        return canvas

    def plot(self) -> Any:
        """Draw with matplotlib; return the `matplotlib.figure.Figure`."""
        check_matplotlib()
        from regard.pictures.figures import grid

        return grid(self)
