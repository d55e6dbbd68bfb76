"""A canvas of rectangles, circles, paths and text, written as SVG or drawn with matplotlib.

Coordinates are pixels, y grows downwards. Every text is escaped. Colours are named styles (colors.py) that
follow the reader's light or dark theme. A picture has no scripts, no links and no ids, so that it can be
pasted into any page, several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from regard.pictures.colors import stylesheet
from regard.pictures.labels import ems, printable

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','Noto Sans CJK SC',Arial,sans-serif"
Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Rectangle:
    x: float
    y: float
    width: float
    height: float
    style: str
    radius: float = 0.0
    title: str = ""


@dataclass(frozen=True)
class Circle:
    x: float
    y: float
    radius: float
    style: str
    title: str = ""


@dataclass(frozen=True)
class Path:
    """Segments: ("M", x, y), ("L", x, y), ("C", x1, y1, x2, y2, x, y) or ("Z",); filled or stroked."""

    segments: tuple[tuple[Any, ...], ...]
    style: str
    width: float = 1.2
    opacity: float = 1.0
    dashed: bool = False
    title: str = ""


@dataclass(frozen=True)
class Cells:
    """Rectangles (x, y, width) of one height and style, written as one path to keep files small."""

    runs: tuple[tuple[float, float, float], ...]
    height: float
    style: str


@dataclass(frozen=True)
class Text:
    x: float
    y: float  # of the baseline
    text: str
    style: str = "ink"
    size: float = 12.0
    anchor: Anchor = "start"
    turn: float = 0.0  # rotation in degrees, clockwise
    bold: bool = False


Shape = Rectangle | Circle | Path | Cells | Text


@dataclass
class Canvas:
    """Shapes and the size of the picture, which grows as shapes are added."""

    title: str
    shapes: list[Shape] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def add(self, shape: Shape) -> None:
        self.shapes.append(shape)
        if isinstance(shape, Rectangle):
            self.reach(shape.x + shape.width, shape.y + shape.height)
        elif isinstance(shape, Circle):
            self.reach(shape.x + shape.radius, shape.y + shape.radius)
        elif isinstance(shape, Text) and not shape.turn:
            share = {"start": 1.0, "middle": 0.5, "end": 0.0}[shape.anchor]
            size = shape.size * (1.14 if shape.bold else 1.0)
            self.reach(shape.x + share * ems(shape.text) * size, shape.y + 0.3 * shape.size)

    def reach(self, x: float, y: float) -> None:
        """Make the picture at least this large."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def rectangle(self, x: float, y: float, width: float, height: float, style: str, **options: Any) -> None:
        self.add(Rectangle(x, y, width, height, style, **options))

    def text(self, x: float, y: float, text: str, style: str = "ink", **options: Any) -> None:
        self.add(Text(x, y, text, style, **options))

    def path(self, *segments: tuple[Any, ...], style: str, **options: Any) -> None:
        self.add(Path(segments, style, **options))

    def arrow(self, *segments: tuple[Any, ...], style: str, size: float = 5.0, **options: Any) -> None:
        """A path with an arrowhead at its end; drawn as shapes, since SVG markers need ids."""
        self.path(*segments, style=style, **options)
        x, y = segments[-1][-2:]
        before = segments[-1][3:5] if segments[-1][0] == "C" else segments[-2][-2:]
        dx, dy = x - before[0], y - before[1]
        length = (dx * dx + dy * dy) ** 0.5 or 1.0
        dx, dy = dx / length * size, dy / length * size
        wing = 0.55
        ends = (x - dx - dy * wing, y - dy + dx * wing), (x - dx + dy * wing, y - dy - dx * wing)
        options = {name: value for name, value in options.items() if name in ("opacity", "width")}
        head = (("M", *ends[0]), ("L", x, y), ("L", *ends[1]))
        self.path(*head, style=style, **options)

    def svg(self, margin: float = 14.0) -> str:
        """The picture as an SVG element, which is also a valid .svg file."""
        width, height = round(self.width + margin), round(self.height + margin)
        title = escape(printable(self.title))
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="regard-picture" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{title}" font-family="{FONT}">',
            f"<title>{title}</title>",
            f"<style>{stylesheet()}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="6"/>',
            *map(_svg, self.shapes),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def _number(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")


def _tag(name: str, attributes: str, content: str, title: str) -> str:
    inner = (f"<title>{escape(printable(title))}</title>" if title else "") + content
    return f"<{name} {attributes}>{inner}</{name}>" if inner else f"<{name} {attributes}/>"


def _svg(shape: Shape) -> str:
    n = _number
    if isinstance(shape, Rectangle):
        radius = f' rx="{n(shape.radius)}"' if shape.radius else ""
        place = f'x="{n(shape.x)}" y="{n(shape.y)}" width="{n(shape.width)}" height="{n(shape.height)}"'
        return _tag("rect", f'class="{shape.style}" {place}{radius}', "", shape.title)
    if isinstance(shape, Circle):
        place = f'cx="{n(shape.x)}" cy="{n(shape.y)}" r="{n(shape.radius)}"'
        return _tag("circle", f'class="{shape.style}" {place}', "", shape.title)
    if isinstance(shape, Cells):
        height = n(shape.height)
        data = "".join(f"M{n(x)} {n(y)}h{n(width)}v{height}h-{n(width)}z" for x, y, width in shape.runs)
        return f'<path class="{shape.style}" shape-rendering="crispEdges" d="{data}"/>'
    if isinstance(shape, Path):
        data = "".join(segment[0] + " ".join(map(n, segment[1:])) for segment in shape.segments)
        more = f' stroke-opacity="{shape.opacity:.2f}"' if shape.opacity < 1 else ""
        more += ' stroke-dasharray="4 3"' if shape.dashed else ""
        attributes = f'class="{shape.style}" d="{data}" stroke-width="{shape.width:.2f}"{more}'
        return _tag("path", f'{attributes} stroke-linecap="round" stroke-linejoin="round"', "", shape.title)
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    turn = f' transform="rotate({n(shape.turn)} {n(shape.x)} {n(shape.y)})"' if shape.turn else ""
    bold = ' font-weight="600"' if shape.bold else ""
    attributes = f'class="{shape.style}" x="{n(shape.x)}" y="{n(shape.y)}" font-size="{n(shape.size)}"'
    return _tag("text", f"{attributes}{anchor}{turn}{bold}", escape(printable(shape.text)), "")


def curve(x1: float, y1: float, x2: float, y2: float, bend: float = 0.5) -> tuple[tuple[Any, ...], ...]:
    """Segments of a curve that leaves and arrives horizontally."""
    dx = (x2 - x1) * bend
    return ("M", x1, y1), ("C", x1 + dx, y1, x2 - dx, y2, x2, y2)


def straight(*points: Sequence[float]) -> tuple[tuple[Any, ...], ...]:
    """Segments of a line through points."""
    return tuple(("L" if i else "M", *point) for i, point in enumerate(points))
