"""A small SVG writer: text, rectangles, lines, in colours that follow the reader's light or dark theme."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

CELL = 26
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #3b4252 }
.small { font-size: 11px } .tiny { font-size: 9px } .title { font-weight: 600 }
.mute { fill: #6b7280 } .middle { text-anchor: middle }
.end { text-anchor: end } .cell { fill: #4051b5 } .ring { fill: none; stroke: #9aa3b5; stroke-opacity: .6 }
.line { stroke: #4051b5; fill: none; stroke-linecap: round } .axis { stroke: #9aa3b5; fill: none }
.box { fill: #4051b5; fill-opacity: .09; stroke: #4051b5; stroke-opacity: .45 }
.pick { fill: #4051b5; fill-opacity: .28; stroke: #4051b5 }
@media (prefers-color-scheme: dark) {
text { fill: #d5d9e2 } .mute { fill: #9aa3b5 } .cell { fill: #9fb0ff } .line { stroke: #9fb0ff }
.box { fill: #9fb0ff; stroke: #9fb0ff } .pick { fill: #9fb0ff; stroke: #9fb0ff } }
"""


class Drawing:
    """Collect shapes, then `save` them as one SVG file."""

    def __init__(self, title: str, style: str = "") -> None:
        """Begin an empty drawing; `style` is CSS for classes that STYLE does not have."""
        self.title, self.shapes, self.width, self.height = title, list[str](), 0.0, 0.0
        self.style = style + STYLE

    def _fit(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(self, x: float, y: float, text: str, style: str = "", turn: float = 0) -> None:
        turned = f' transform="rotate({turn:g} {x:g} {y:g})"' if turn else ""
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" class="{style}"{turned}>{escape(text)}</text>')
        self._fit(
            x + (0 if "end" in style or turn else 7.6 * len(text) / (2 if "middle" in style else 1)), y + 6
        )

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        style: str,
        opacity: float = 1,
        round_: float = 3,
    ) -> None:
        faint = "" if opacity == 1 else f' fill-opacity="{opacity:.2f}"'
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_:g}" '
            f'class="{style}"{faint}/>'
        )
        self._fit(x + width, y + height)

    def path(self, d: str, style: str = "line", width: float = 1.5, opacity: float = 1) -> None:
        faint = "" if opacity == 1 else f' stroke-opacity="{opacity:.2f}"'
        self.shapes.append(f'<path d="{d}" class="{style}" stroke-width="{width:.1f}"{faint}/>')

    def matrix(
        self,
        x: float,
        y: float,
        weights: Sequence[Sequence[float]],
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
        cell: float = CELL,
    ) -> None:
        """Draw weights from 0 to 1 as squares; row labels to the left, column labels above, slanted."""
        gap, corner = (1.5, 3) if cell >= 20 else (0.5, 1)
        down, across = len(weights), len(weights[0])
        self.rectangle(x - 1, y - 1, across * cell + 2, down * cell + 2, "ring", round_=corner + 1)
        for i, row in enumerate(weights):
            for j, weight in enumerate(row):
                if weight > 0.015:
                    side = cell - 2 * gap
                    left, top = x + j * cell + gap, y + i * cell + gap
                    self.rectangle(left, top, side, side, "cell", min(1.0, weight), round_=corner)
        for i, label in enumerate(rows):
            self.text(x - 8, y + (i + 0.5) * cell + 4.5, label, "end")
        for j, label in enumerate(columns):
            self.text(x + (j + 0.5) * cell + 3, y - 8, label, turn=-50)

    def save(self, path: Path) -> None:
        width, height = round(self.width + 8), round(self.height + 8)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="{escape(self.title)}">'
        )
        body = "\n".join(
            [head, f"<title>{escape(self.title)}</title>", f"<style>{self.style}</style>", *self.shapes]
        )
        path.write_text(f"{body}\n</svg>\n", encoding="utf-8")
