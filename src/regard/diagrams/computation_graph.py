"""A computation graph on a grid: time runs to the right, data flows upwards.

Nodes are boxes at a column (in units of time steps) and a row. Edges are drawn below the nodes and are cut at
their borders. Blue is recurrence, orange is attention, grey layers have the same weights at every position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from regard.pictures.canvas import Canvas, straight
from regard.pictures.labels import ems
from regard.pictures.picture import Picture

COLUMN, ROW = 82.0, 58.0  # pixels between columns and rows
WIDTH, HEIGHT = 50.0, 28.0  # of a node
CAPTION = 11.0  # font size
MARGIN = 18.0

LEGEND = {
    "state": "recurrent state",
    "attention": "attention",
    "layer": "same weights at every position",
    "output": "output",
}
EdgeStyle = Literal["edge", "flow", "attends"]
Side = Literal["left", "right"]


@dataclass(frozen=True)
class Node:
    """A box; `column` and `row` of its centre."""

    column: float
    row: float
    label: str
    style: str
    width: float = WIDTH


class Edge(NamedTuple):
    start: Node
    end: Node
    style: EdgeStyle
    strength: float  # opacity
    dashed: bool
    arrow: bool
    shift: float  # pixels downwards, for two edges between the same nodes


class RepeatedLayer(NamedTuple):
    """A layer that is repeated: rows and columns that it covers, and how often."""

    rows: tuple[float, float]
    columns: tuple[float, float]
    label: str


class Caption(NamedTuple):
    row: float
    text: str
    side: Side


@dataclass
class Graph(Picture):
    """A drawing of a model.

    Attributes:
        title: the headline.
        remarks: sentences below the drawing.
        nodes, edges, bands, captions: what is drawn.
        legend: what the styles of nodes mean.
    """

    title: str
    remarks: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    bands: list[RepeatedLayer] = field(default_factory=list)
    captions: list[Caption] = field(default_factory=list)
    legend: dict[str, str] = field(default_factory=lambda: dict(LEGEND))

    def node(self, column: float, row: float, label: str, style: str = "layer", width: float = WIDTH) -> Node:
        self.nodes.append(Node(column, row, label, style, width))
        return self.nodes[-1]

    def edge(
        self,
        start: Node,
        end: Node,
        style: EdgeStyle = "edge",
        *,
        strength: float = 1.0,
        dashed: bool = False,
        arrow: bool = True,
        shift: float = 0.0,
    ) -> None:
        self.edges.append(Edge(start, end, style, strength, dashed, arrow, shift))

    def caption(self, row: float, text: str, side: Side) -> None:
        """Describe a row, beside it."""
        self.captions.append(Caption(row, text, side))

    def band(self, rows: tuple[float, float], columns: tuple[float, float], label: str) -> None:
        """Mark rows as a layer that is repeated."""
        self.bands.append(RepeatedLayer(rows, columns, label))

    def canvas(self) -> Canvas:
        return _Layout(self).draw()


class _Layout:
    """Pixel coordinates of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        side = {
            name: max((ems(c.text) * CAPTION for c in graph.captions if c.side == name), default=0.0)
            for name in ("left", "right")
        }
        first = min(node.column for node in graph.nodes)
        self.left = MARGIN + side["left"] + 24 + WIDTH / 2 - first * COLUMN
        rows = [node.row for node in graph.nodes]
        self.bottom = 46 + HEIGHT + max(rows) * ROW
        self.right = self.x(max(node.column for node in graph.nodes)) + WIDTH / 2
        self.width = self.right + 24 + side["right"]

    def x(self, column: float) -> float:
        return self.left + column * COLUMN

    def y(self, row: float) -> float:
        return self.bottom - row * ROW

    def draw(self) -> Canvas:
        graph, canvas = self.graph, Canvas(self.graph.title)
        canvas.text(MARGIN, 28, graph.title, size=15, bold=True)
        canvas.reach(self.width, self.bottom)
        for band in graph.bands:
            self._band(canvas, band)
        for edge in sorted(graph.edges, key=lambda e: (e.style == "attends", e.strength)):
            self._edge(canvas, edge)
        for node in graph.nodes:
            self._node(canvas, node)
        for row, text, side in graph.captions:
            left = self.x(min(n.column for n in graph.nodes)) - WIDTH / 2
            x, anchor = (left - 22, "end") if side == "left" else (self.right + 22, "start")
            canvas.text(x, self.y(row) + 4, text, "mute", size=CAPTION, anchor=anchor)
        y = self._legend(canvas, self.bottom + 48) + 6
        for remark in graph.remarks:
            y += 19
            canvas.text(MARGIN, y, remark, "ink", size=12)
        return canvas

    def _node(self, canvas: Canvas, node: Node) -> None:
        x, y = self.x(node.column), self.y(node.row)
        radius = 13.0 if node.style == "state" else 5.0
        canvas.rectangle(x - node.width / 2, y - HEIGHT / 2, node.width, HEIGHT, node.style, radius=radius)
        size = min(12.5, (node.width - 4) / max(ems(node.label), 0.1))
        canvas.text(x, y + size * 0.36, node.label, size=size, anchor="middle")

    def _band(self, canvas: Canvas, band: RepeatedLayer) -> None:
        left, right = self.x(band.columns[0]) - WIDTH / 2 - 12, self.x(band.columns[1]) + WIDTH / 2 + 12
        top, bottom = self.y(band.rows[1]) - HEIGHT / 2 - 20, self.y(band.rows[0]) + HEIGHT / 2 + 9
        canvas.rectangle(left, top, right - left, bottom - top, "band", radius=10)
        canvas.text(left + 8, top + 14, band.label, "mute", size=12, bold=True)

    def _edge(self, canvas: Canvas, edge: Edge) -> None:
        a, b = ((self.x(n.column), self.y(n.row) + edge.shift) for n in (edge.start, edge.end))
        gap = 3.5 if edge.arrow else 1.0
        ends = _clip(a, b, edge.start, 1.0), _clip(b, a, edge.end, gap)
        if edge.end.row > edge.start.row:  # upwards, from the top of a node to the bottom of the other
            aside = max(-1.0, min(1.0, (a[0] - b[0]) / (3 * COLUMN))) * edge.end.width * 0.36
            ends = (a[0], a[1] - HEIGHT / 2 - 1), (b[0] + aside, b[1] + HEIGHT / 2 + gap)
        width = {"edge": 1.1, "flow": 1.7, "attends": 1.5}[edge.style]
        draw = canvas.arrow if edge.arrow else canvas.path
        options = {"width": width, "opacity": edge.strength, "dashed": edge.dashed}
        draw(*straight(*ends), style=edge.style, **options)

    def _legend(self, canvas: Canvas, y: float) -> float:
        """Explain the colours that occur; return the y of the legend."""
        used = {node.style for node in self.graph.nodes}
        x = MARGIN
        for style, text in self.graph.legend.items():
            if style in used:
                canvas.rectangle(x, y - 9, 15, 11, style, radius=3)
                canvas.text(x + 21, y, text, "mute", size=11)
                x += 21 + ems(text) * 11 + 20
        return y


def _clip(
    start: tuple[float, float], end: tuple[float, float], node: Node, gap: float
) -> tuple[float, float]:
    """Where the line from the centre of a node leaves its box, plus a gap."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    share = min(
        (node.width / 2 + gap) / abs(dx) if dx else float("inf"),
        (HEIGHT / 2 + gap) / abs(dy) if dy else float("inf"),
    )
    return start[0] + dx * share, start[1] + dy * share


def numbered(symbol: str, number: int) -> str:
    """A symbol with a subscript: h₁."""
    return symbol + str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
