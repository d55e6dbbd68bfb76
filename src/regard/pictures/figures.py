"""The pictures as matplotlib figures, made without pyplot, which needs a display.

Labels are never parsed as mathematics: a token may be `$`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from matplotlib import font_manager
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle as CirclePatch
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path as Outline

from regard.errors import OptionError
from regard.pictures.canvas import Canvas, Cells, Circle, Path, Rectangle, Shape, Text
from regard.pictures.colors import STYLES, ramp
from regard.pictures.labels import label_step, printable, shorten

if TYPE_CHECKING:
    from regard.pictures.head_grid import HeadGrid
    from regard.pictures.matrix_picture import MatrixPicture

COLORS = LinearSegmentedColormap.from_list("regard", ramp())
# Fonts with other scripts than DejaVu's, in the order in which they are tried.
FONTS = ("Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Hebrew")
FONTS += ("Noto Sans Devanagari", "WenQuanYi Micro Hei", "Arial Unicode MS", "Microsoft YaHei")
PIXEL = 0.75  # points per pixel of a canvas


@cache
def font_family() -> list[str]:
    """Installed fonts for many scripts; matplotlib takes each character from the first that has it."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in FONTS if name in installed)]


@contextmanager
def _quiet() -> Iterator[None]:
    """A character that no font has is drawn as a box; matplotlib would warn for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


class QuietFigure(Figure):
    """A figure whose drawing does not warn about characters without a glyph."""

    def draw(self, renderer: Any) -> None:
        with _quiet():
            super().draw(renderer)

    def savefig(self, *args: Any, **options: Any) -> None:
        with _quiet():
            super().savefig(*args, **options)


def _figure(width: float, height: float) -> Figure:
    return QuietFigure(figsize=(width, height), layout="constrained")


def _axes(axes: Any, width: float, height: float) -> Any:
    if axes is None:
        return _figure(width, height).subplots()
    if not hasattr(axes, "imshow"):
        raise OptionError(f"axes must be matplotlib Axes, got {type(axes).__name__}")
    return axes


def _style_labels(texts: Sequence[Any], size: float) -> None:
    for text in texts:
        text.set_parse_math(False)
        text.set_fontfamily(font_family())
        text.set_fontsize(size)


def _title(axes: Any, picture: MatrixPicture) -> None:
    note = "; ".join(filter(None, (picture.note, picture.merged().note)))
    lines = [shorten(printable(picture.title), 60), note]
    title = axes.set_title("\n".join(filter(None, lines)), loc="left", fontsize=10)
    _style_labels([title], 10)


def heat_map(picture: MatrixPicture, axes: Any = None) -> Figure:
    """Draw a matrix with its tokens and a colour bar."""
    weights, rows, columns, _ = picture.merged()
    low, high = picture.value_range
    cell = min(0.36, max(0.075, 6.5 / max(len(rows), len(columns))))
    axes = _axes(axes, 2.6 + cell * len(columns), 1.8 + cell * len(rows))
    drawn = axes.imshow(weights.numpy(), cmap=COLORS, vmin=low, vmax=high or 1.0, aspect="equal")
    size = min(9.0, max(5.0, cell * 60))
    step = label_step(cell * 72, size)
    axes.set_xticks(range(0, len(columns), step), [shorten(label) for label in columns[::step]])
    axes.set_yticks(range(0, len(rows), step), [shorten(label) for label in rows[::step]])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for label in axes.get_xticklabels():
        label.set(rotation=55, ha="left", rotation_mode="anchor")
    _style_labels([*axes.get_xticklabels(), *axes.get_yticklabels()], size)
    axes.set_xlabel(picture.column_title)
    axes.xaxis.set_label_position("bottom")
    axes.set_ylabel(picture.row_title)
    for spine in axes.spines.values():
        spine.set_color(STYLES["frame"].stroke[0])  # type: ignore[index]
    axes.figure.colorbar(drawn, ax=axes, shrink=0.6, label="weight").outline.set_visible(False)
    _title(axes, picture)
    return axes.figure


def lines(picture: MatrixPicture, axes: Any = None) -> Figure:
    """Draw queries on the left, keys on the right and lines as wide as the weights."""
    from regard.pictures.matrix_picture import MIN_LINE

    weights, rows, columns, _ = picture.merged()
    high = picture.value_range[1]
    count = max(len(rows), len(columns))
    pitch = min(0.26, max(0.1, 7.5 / count))
    axes = _axes(axes, 5.5, 1.0 + pitch * count)
    size = min(9.0, max(5.0, pitch * 55))
    places = [
        [(i + 0.5) + (count - len(labels)) / 2 for i in range(len(labels))] for labels in (rows, columns)
    ]
    for i, row in enumerate(weights.tolist()):
        for j, value in enumerate(row):
            if high > 0 and value >= MIN_LINE * high:
                share = value / high
                ends = [(0.0, places[0][i]), (0.5, places[0][i]), (0.5, places[1][j]), (1.0, places[1][j])]
                outline = Outline(ends, [Outline.MOVETO, *[Outline.CURVE4] * 3])
                options = {"lw": max(0.3, 5 * share), "alpha": 0.12 + 0.78 * share, "fill": False}
                axes.add_patch(PathPatch(outline, edgecolor=STYLES["weight"].stroke[0], **options))  # type: ignore[index]
    texts = [
        axes.text(-0.02, y, shorten(s), ha="right", va="center") for s, y in zip(rows, places[0], strict=True)
    ]
    texts += [axes.text(1.02, y, shorten(s), va="center") for s, y in zip(columns, places[1], strict=True)]
    _style_labels(texts, size)
    axes.set(xlim=(-0.45, 1.45), ylim=(count, 0))
    axes.axis("off")
    _title(axes, picture)
    return axes.figure


def grid(picture: HeadGrid) -> Figure:
    """Draw every head of every layer as a small matrix."""
    panels = picture.panels()
    low, high = picture.value_range
    heads = picture.heads
    side = min(1.7, max(0.6, 11 / heads))
    figure = _figure(1.6 + heads * side, 0.9 + len(panels) * side)
    axes = figure.subplots(len(panels), heads, squeeze=False)
    drawn = None
    for layer, (row, (name, weights)) in enumerate(zip(axes, panels.items(), strict=True)):
        for head, place in enumerate(row):
            if head >= len(weights):
                place.axis("off")
                continue
            options = {"cmap": COLORS, "vmin": low, "vmax": high or 1.0}
            drawn = place.imshow(weights[head].numpy(), aspect="auto", **options)
            place.set(xticks=[], yticks=[])
            place.spines[:].set_color(STYLES["frame"].stroke[0])  # type: ignore[index]
            if layer == 0:
                _style_labels([place.set_title(picture.column(head))], 8)
        label = row[0].set_ylabel(
            shorten(printable(name), 14), fontsize=8, rotation=0, ha="right", va="center"
        )
        label.set_parse_math(False)
    if drawn is not None:
        figure.colorbar(drawn, ax=axes, shrink=0.5, label="weight").outline.set_visible(False)  # type: ignore[operator]
    title = " · ".join(filter(None, (shorten(printable(picture.title), 60), picture.note)))
    if title:
        _style_labels([figure.suptitle(title, x=0.01, ha="left")], 10)
    return figure


def canvas_figure(canvas: Canvas, margin: float = 14.0) -> Figure:
    """Draw the shapes of a canvas in its light colours, at the size that it has in SVG."""
    width, height = canvas.width + margin, canvas.height + margin
    figure = QuietFigure(figsize=(width / 96, height / 96))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    for shape in canvas.shapes:
        _draw(axes, shape)
    return figure


def _colors(style: str) -> dict[str, Any]:
    if style.startswith("w") and style[1:].isdecimal():
        return {"facecolor": ramp()[int(style[1:])], "edgecolor": "none"}
    fill, stroke = STYLES[style]
    return {"facecolor": fill[0] if fill else "none", "edgecolor": stroke[0] if stroke else "none"}


def _draw(axes: Any, shape: Shape) -> None:
    if isinstance(shape, Text):
        options = {"ha": {"start": "left", "middle": "center", "end": "right"}[shape.anchor]}
        options |= {"rotation": -shape.turn, "rotation_mode": "anchor", "va": "baseline"}
        color, weight = _colors(shape.style)["facecolor"], "bold" if shape.bold else "normal"
        text = axes.text(shape.x, shape.y, printable(shape.text), color=color, weight=weight, **options)
        _style_labels([text], shape.size * PIXEL * 0.94)  # DejaVu is wider than the fonts of browsers
    elif isinstance(shape, Rectangle):
        box = f"round,pad=0,rounding_size={shape.radius}" if shape.radius else "square,pad=0"
        corner = (shape.x, shape.y)
        patch = FancyBboxPatch(corner, shape.width, shape.height, box, lw=PIXEL, **_colors(shape.style))
        axes.add_patch(patch)
    elif isinstance(shape, Circle):
        axes.add_patch(CirclePatch((shape.x, shape.y), shape.radius, lw=PIXEL, **_colors(shape.style)))
    elif isinstance(shape, Cells):
        h = shape.height
        boxes = [((x, y), (x + w, y), (x + w, y + h), (x, y + h)) for x, y, w in shape.runs]
        axes.add_collection(PolyCollection(boxes, lw=0, **_colors(shape.style)))
    else:
        axes.add_patch(_patch(shape))


def _patch(shape: Path) -> PathPatch:
    codes: list[Any] = []
    points: list[tuple[float, float]] = []
    for letter, *numbers in shape.segments:
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True)) or [points[0]]
        kind = {"M": Outline.MOVETO, "L": Outline.LINETO, "C": Outline.CURVE4, "Z": Outline.CLOSEPOLY}[letter]
        codes += [kind] * len(pairs)
        points += pairs
    colors = _colors(shape.style)
    line = (0, (4, 3)) if shape.dashed else "solid"
    options = {"lw": shape.width * PIXEL, "ls": line, "alpha": shape.opacity, "capstyle": "round"}
    return PathPatch(Outline(points, codes), **colors, **options)
