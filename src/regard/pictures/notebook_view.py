"""Attention weights in a notebook: a self-contained page inside the cell, with choice of layer and head.

The page is an iframe with all scripts, styles and weights inside, so that several views do not disturb each
other and an exported notebook keeps them. With anywidget, Python reads and sets what is chosen.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Sequence
from functools import cached_property
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from regard.errors import OptionError
from regard.files.atomic import write_file
from regard.pictures.shown_layers import ShownLayer, labels
from regard.pictures.web_files import compact

MAX_BYTES = 1 << 24  # of the weights in one view
MODULES = (
    "dom.js",
    "format.js",
    "matrix.js",
    "lines.js",
)  # of the explorer's page, imported ones first
ROW = 44  # px of a row of the matrix, at most
STYLE = (
    "body{background:none}main{padding:0}.card{margin:0}"
    "@media(min-width:600px){.flow:not(.stacked){grid-template-columns:1fr 1fr}}"
)


class AttentionView:
    """An interactive view, which a notebook shows as the result of a cell; `save` writes it as a page.

    With anywidget, `choice.layer`, `choice.head` (−1: the mean), `choice.row` and `choice.column` are what is
    chosen in it, and can be set; `choice.observe` calls a function when they change.
    """

    def __init__(
        self, layers: Sequence[ShownLayer], first: int = 0, head: int | None = None, title: str = ""
    ) -> None:
        size = sum(4 * layer.weights.numel() for layer in layers)
        if size > MAX_BYTES:
            raise OptionError(
                f"the weights take {size / 2**20:.0f} MiB, and a view holds at most {MAX_BYTES >> 20}; "
                "choose fewer by kind= or layer=, or a shorter text"
            )
        self.layers, self.first, self.head, self.title = list(layers), first, head, title
        self.id = uuid.uuid4().hex[:12]

    @cached_property
    def choice(self) -> Any:
        """What is chosen in the view, as a widget; it needs anywidget."""
        if find_spec("anywidget") is None:
            raise OptionError('reading the choice needs anywidget; pip install "regard[notebook]"')
        from regard.pictures.notebook_widget import ViewSelection

        return ViewSelection(view=self.id, layer=self.first, head=-1 if self.head is None else self.head)

    @property
    def height(self) -> int:
        """Height of the view in px."""
        rows = max(len(layer.rows) for layer in self.layers)
        stacked = any(len(layer.columns) > 16 for layer in self.layers)
        return min(900, (470 if stacked else 300) + ROW * min(rows, 12))

    def html(self) -> str:
        """The view as a page without other files."""
        page = files("regard").joinpath("explorer", "page")
        style = compact(page.joinpath("style.css").read_text(encoding="utf-8")) + STYLE
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title or 'attention')}</title>\n<style>{style}</style>\n</head>\n<body>\n"
            '<main id="view"></main>\n<p class="hidden" id="live" aria-live="polite"></p>\n'
            f'<script type="module">\n{script()}\nnotebook.show({self._data()});\n</script>\n'
            "</body>\n</html>\n"
        )

    def frame(self) -> str:
        """The view as an element for HTML."""
        return (
            f'<iframe name="regard-{self.id}" sandbox="allow-scripts" '
            f'title="{escape(self.title or "attention")}" '
            f'srcdoc="{escape(self.html())}" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the view as a page; return its path."""
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise OptionError(f"a view is written to a file that ends in .html, got {path.name!r}; rename it")
        write_file(path, self.html())
        return path

    def _repr_html_(self) -> str:
        return self.frame()

    def _ipython_display_(self) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        display({"text/html": self.frame(), "text/plain": repr(self)}, raw=True)
        if find_spec("anywidget") is not None:
            display(self.choice)

    def __repr__(self) -> str:
        return f"AttentionView({', '.join(layer.title for layer in self.layers)})"

    def _data(self) -> str:
        """The weights and labels as a JavaScript object."""
        layers = [
            {
                "title": layer.title,
                "heads": len(layer.weights),
                "rows": labels(layer.rows),
                "columns": labels(layer.columns),
                "axes": layer.axes,
                "weights": base64.b64encode(
                    layer.weights.float().cpu().contiguous().numpy().tobytes()
                ).decode(),
            }
            for layer in self.layers
        ]
        shown = {
            "view": self.id,
            "title": self.title,
            "layer": self.first,
            "head": -1 if self.head is None else self.head,
        }
        text = json.dumps({**shown, "layers": layers}, ensure_ascii=False)
        return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def script() -> str:
    """The modules of the view as one script: each becomes an object of what it exports."""
    page = files("regard").joinpath("explorer", "page")
    texts = {name: page.joinpath(name).read_text(encoding="utf-8") for name in MODULES}
    texts["notebook.js"] = files("regard.pictures").joinpath("notebook.js").read_text(encoding="utf-8")
    return "\n".join(_as_object(name.removesuffix(".js"), compact(text)) for name, text in texts.items())


def _as_object(name: str, text: str) -> str:
    text = re.sub(
        r'^import \{\s+([^}]*?),?\s+\} from "\./(\w+)\.js";$', r"const { \1 } = \2;", text, flags=re.MULTILINE
    )
    exported = re.findall(r"^export (?:async )?(?:const|let|function|class) (\w+)", text, re.MULTILINE)
    text = re.sub(r"^export ", "", text, flags=re.MULTILINE)
    return f"const {name} = (() => {{\n{text}\nreturn {{ {', '.join(exported)} }};\n}})();"
