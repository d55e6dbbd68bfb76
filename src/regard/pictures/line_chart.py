"""Curves over one quantity, with linear or logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from regard.errors import OptionError
from regard.pictures.canvas import Canvas, Circle, straight
from regard.pictures.labels import ems
from regard.pictures.picture import Picture

STROKES = ("weight", "attends", "line-green", "line-purple", "edge")
WIDTH, HEIGHT, MARGIN = 380.0, 220.0, 16.0
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, eq=False)
class LineChart(Picture):
    """One line per series of points (x, y), with a legend.

    Args:
        series: name → points; at most five.
        title: the headline.
        x_title: what the horizontal axis shows.
        y_title: what the vertical axis shows.
        log_x: logarithmic horizontal axis; all values must then be positive.
        log_y: the same for the vertical axis.
        note: a line below the headline.
        connect: join the points of a series by a line.
    """

    series: Mapping[str, Points]
    title: str = ""
    x_title: str = ""
    y_title: str = ""
    log_x: bool = False
    log_y: bool = False
    note: str = ""
    connect: bool = True

    def __post_init__(self) -> None:
        if not any(len(points) for points in self.series.values()):
            raise OptionError("there is nothing to draw: no series has a point")
        if len(self.series) > len(STROKES):
            raise OptionError(f"a chart has at most {len(STROKES)} series, got {len(self.series)}; draw two")
        for name, points in self.series.items():
            for point in points:
                for axis, value, log in zip("xy", point, (self.log_x, self.log_y), strict=True):
                    if not math.isfinite(value) or (log and value <= 0):
                        kind = "positive and finite on a logarithmic axis" if log else "finite"
                        raise OptionError(f"{axis} of {name!r} must be {kind}, got {value!r}")

    def canvas(self) -> Canvas:
        canvas = Canvas(self.title or "line chart")
        top = MARGIN
        for text, size, style in ((self.title, 15.0, "ink"), (self.note, 11.0, "mute")):
            if text:
                canvas.text(MARGIN, top + size, text, style, size=size, bold=style == "ink")
                top += size + 7
        if self.y_title:
            canvas.text(MARGIN, top + 14, self.y_title, "mute", size=11)
            top += 18
        points = [point for series in self.series.values() for point in series]
        x_ticks = ticks([x for x, _ in points], self.log_x)
        y_ticks = ticks([y for _, y in points], self.log_y)
        left = MARGIN + 8 + max(ems(label) for _, label in y_ticks) * 10
        top += 10
        x = _scale(x_ticks, left, left + WIDTH, self.log_x)
        y = _scale(y_ticks, top + HEIGHT, top, self.log_y)
        for value, label in y_ticks:
            canvas.path(*straight((left, y(value)), (left + WIDTH, y(value))), style="frame", width=0.6)
            canvas.text(left - 7, y(value) + 3.5, label, "mute", size=10, anchor="end")
        for value, label in x_ticks:
            canvas.path(
                *straight((x(value), top + HEIGHT), (x(value), top + HEIGHT + 4)), style="frame", width=1
            )
            canvas.text(x(value), top + HEIGHT + 17, label, "mute", size=10, anchor="middle")
        canvas.text(left + WIDTH / 2, top + HEIGHT + 33, self.x_title, "mute", size=11, anchor="middle")
        canvas.reach(left + WIDTH, top + HEIGHT + 36)
        for i, (name, series) in enumerate(self.series.items()):
            stroke, row = STROKES[i], top + 8 + 19 * i
            if self.connect and len(series) > 1:
                canvas.path(*straight(*((x(a), y(b)) for a, b in series)), style=stroke, width=2)
            for a, b in series:
                canvas.add(Circle(x(a), y(b), 2.6, stroke, f"{name}: {a:g}, {b:.4g}"))
            canvas.path(
                *straight((left + WIDTH + 16, row), (left + WIDTH + 38, row)), style=stroke, width=2.5
            )
            canvas.text(left + WIDTH + 44, row + 4, name, size=11.5)
        return canvas


def _scale(
    marks: Sequence[tuple[float, str]], start: float, end: float, log: bool
) -> Callable[[float], float]:
    """From values to pixels; the outer ticks are the ends of the axis."""
    change = math.log10 if log else float
    low, high = change(marks[0][0]), change(marks[-1][0])
    return lambda value: start + (change(value) - low) / (high - low) * (end - start)


def ticks(values: Sequence[float], log: bool = False) -> list[tuple[float, str]]:
    """Round values around all values, at least two, each with its label."""
    low, high = min(values), max(values)
    if log:
        first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
        last = max(last, first + 1)
        step = math.ceil((last - first) / 6)
        last = first + math.ceil((last - first) / step) * step
        return [(10.0**e, f"{10**e:g}" if 0 <= e <= 4 else f"1e{e}") for e in range(first, last + 1, step)]
    raw = (high - low or abs(high) or 1.0) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    last = max(last, first + 1)
    return [(i * step, f"{round(i * step, 10):,g}") for i in range(first, last + 1)]
