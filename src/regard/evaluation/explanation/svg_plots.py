"""Histogram, scatter plot and lines as SVG text, for a page that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from regard.pictures.canvas import Canvas, Circle, straight

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 28, 40  # margins
STROKES = ("weight", "attends", "edge", "line-green")
Span = tuple[float, float]
Scale = Callable[[float], float]


def histogram(
    values: Sequence[float], title: str, labels: tuple[str, str], span: Span, bins: int = 20
) -> str:
    """How many values lie in each of equal bins of the span; values outside go to the outer bins."""
    counts = [0] * bins
    for value in values:
        share = (value - span[0]) / (span[1] - span[0])
        counts[min(bins - 1, max(0, int(share * bins)))] += 1
    canvas, x, y = _axes(title, labels, (span, (0, max(1, *counts))))
    width = (span[1] - span[0]) / bins
    for i, count in enumerate(counts):
        if count:
            left, bar_width = x(span[0] + i * width), max(1.0, x(width) - x(0) - 1)
            canvas.rectangle(left, y(count), bar_width, y(0) - y(count), "blue")
    return canvas.svg(margin=0)


def scatter(
    points: Sequence[tuple[float, float]], title: str, labels: tuple[str, str], spans: tuple[Span, Span]
) -> str:
    """One circle per point."""
    canvas, x, y = _axes(title, labels, spans)
    for a, b in points:
        canvas.add(Circle(x(a), y(b), 3, STROKES[0]))
    return canvas.svg(margin=0)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    labels: tuple[str, str],
    spans: tuple[Span, Span],
) -> str:
    """One line per series, with a legend."""
    canvas, x, y = _axes(title, labels, spans)
    for i, (name, points) in enumerate(series.items()):
        stroke = STROKES[i % len(STROKES)]
        canvas.path(*straight(*((x(a), y(b)) for a, b in points)), style=stroke, width=2)
        for a, b in points:
            canvas.add(Circle(x(a), y(b), 3, stroke))
        row = TOP + 10 + 14 * i
        canvas.path(*straight((LEFT + 8, row), (LEFT + 22, row)), style=stroke, width=2)
        canvas.text(LEFT + 27, row + 4, name, size=11)
    return canvas.svg(margin=0)


def _axes(title: str, labels: tuple[str, str], spans: tuple[Span, Span]) -> tuple[Canvas, Scale, Scale]:
    """A canvas with title, axes, ticks and labels, and the functions from values to pixels."""
    across, up = spans

    def x(value: float) -> float:
        return LEFT + (value - across[0]) / (across[1] - across[0]) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - up[0]) / (up[1] - up[0]) * (HEIGHT - TOP - BOTTOM)

    canvas = Canvas(title)
    canvas.reach(WIDTH, HEIGHT)
    bottom = HEIGHT - BOTTOM
    canvas.text(LEFT, 16, title, size=13)
    canvas.path(*straight((LEFT, TOP), (LEFT, bottom), (WIDTH - RIGHT, bottom)), style="edge", width=1)
    for value in _ticks(across):
        canvas.text(x(value), bottom + 15, f"{value:g}", "mute", size=10, anchor="middle")
    for value in _ticks(up):
        canvas.text(LEFT - 5, y(value) + 3, f"{value:g}", "mute", size=10, anchor="end")
    canvas.text((LEFT + WIDTH) / 2, HEIGHT - 6, labels[0], "mute", size=11, anchor="middle")
    canvas.text(12, (TOP + bottom) / 2, labels[1], "mute", size=11, anchor="middle", turn=-90)
    return canvas, x, y


def _ticks(span: Span) -> list[float]:
    """About four round values inside the span."""
    raw = (span[1] - span[0]) / 4
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    first, last = math.ceil(span[0] / step - 1e-9), math.floor(span[1] / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]
