"""Plots as SVG text for pages that load nothing: histogram, scatter plot, lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 28, 40  # margins
COLORS = ("#3366aa", "#cc6633", "#888888", "#339966")
Span = tuple[float, float]


def histogram(values: Sequence[float], title: str, label: str, span: Span, bins: int = 20) -> str:
    """How many values lie in each of equal bins of the span; values outside go to the outer bins."""
    counts = [0] * bins
    for value in values:
        share = (value - span[0]) / (span[1] - span[0])
        counts[min(bins - 1, max(0, int(share * bins)))] += 1
    most = max(1, *counts)
    x, y = _scales(span, (0, most))
    width = (span[1] - span[0]) / bins
    bars = [
        f'<rect x="{x(span[0] + i * width):.1f}" y="{y(count):.1f}" '
        f'width="{max(1.0, x(width) - x(0) - 1):.1f}" height="{y(0) - y(count):.1f}" fill="{COLORS[0]}"/>'
        for i, count in enumerate(counts)
        if count
    ]
    return _plot("".join(bars), title, label, "texts", span, (0, most))


def scatter(
    points: Sequence[tuple[float, float]], title: str, labels: tuple[str, str], spans: tuple[Span, Span]
) -> str:
    """One dot per point."""
    x, y = _scales(*spans)
    dots = [
        f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{COLORS[0]}" fill-opacity="0.5"/>'
        for a, b in points
    ]
    return _plot("".join(dots), title, *labels, *spans)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    labels: tuple[str, str],
    spans: tuple[Span, Span],
) -> str:
    """One line per series, with a legend."""
    x, y = _scales(*spans)
    drawn = []
    for i, (name, points) in enumerate(series.items()):
        color = COLORS[i % len(COLORS)]
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{color}"/>' for a, b in points]
        drawn.append(
            f'<text x="{LEFT + 8}" y="{TOP + 14 + 14 * i}" fill="{color}" font-size="11">'
            f"{escape(name)}</text>"
        )
    return _plot("".join(drawn), title, *labels, *spans)


def _scales(across: Span, up: Span) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Functions from values to pixels."""

    def x(value: float) -> float:
        return LEFT + (value - across[0]) / (across[1] - across[0]) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - up[0]) / (up[1] - up[0]) * (HEIGHT - TOP - BOTTOM)

    return x, y


def _plot(content: str, title: str, x_label: str, y_label: str, across: Span, up: Span) -> str:
    x, y = _scales(across, up)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif">',
        f'<text x="{LEFT}" y="16" font-size="13" fill="currentColor">{escape(title)}</text>',
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="currentColor"/>',
    ]
    parts += [
        f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 15}" font-size="10" text-anchor="middle" '
        f'fill="currentColor">{value:g}</text>'
        for value in _ticks(across)
    ]
    parts += [
        f'<text x="{LEFT - 5}" y="{y(value) + 3:.1f}" font-size="10" text-anchor="end" '
        f'fill="currentColor">{value:g}</text>'
        for value in _ticks(up)
    ]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts += [
        content,
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" font-size="11" text-anchor="middle" '
        f'fill="currentColor">{escape(x_label)}</text>',
        f'<text transform="translate(12 {middle}) rotate(-90)" font-size="11" text-anchor="middle" '
        f'fill="currentColor">{escape(y_label)}</text>',
        "</svg>",
    ]
    return "".join(parts)


def _ticks(span: Span) -> list[float]:
    """About four round values inside the span."""
    raw = (span[1] - span[0]) / 4
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    first, last = math.ceil(span[0] / step - 1e-9), math.floor(span[1] / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]
