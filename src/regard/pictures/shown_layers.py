"""Weights that `show` displays: an interactive view in a notebook, text in a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.errors import OptionError
from regard.pictures.labels import clean


@dataclass(frozen=True, eq=False)
class ShownLayer:
    """The weights of one layer.

    Attributes:
        title: what it is, such as "cross-attention, layer 1".
        weights: (heads, rows, columns).
        rows: a token for each row.
        columns: a token for each column.
        axes: the names of rows and columns.
    """

    title: str
    weights: Tensor
    rows: list[str]
    columns: list[str]
    axes: tuple[str, str] = ("query", "key")


def show_layers(layers: Sequence[ShownLayer], first: int, head: int | None, title: str) -> Any:
    """Return an interactive view in a notebook; print text elsewhere and return None.

    Args:
        layers: the layers to choose from.
        first: the index of the layer that is shown first.
        head: the head that is shown first; None: the mean of all.
        title: the headline.
    """
    heads = len(layers[first].weights)
    if head is not None and (
        isinstance(head, bool) or not isinstance(head, int) or not -heads <= head < heads
    ):
        raise OptionError(f"head must be an integer below the {heads} heads, got {head!r}")
    head = None if head is None else head % heads
    if in_notebook():
        from regard.pictures.notebook_view import AttentionView

        return AttentionView(layers, first, head, title)
    from regard.pictures.terminal_view import terminal_text

    text = terminal_text(layers, first, head, title, colored=use_color(sys.stdout))
    try:
        print(text)
    except UnicodeEncodeError:  # a terminal that cannot show a token
        encoding = sys.stdout.encoding or "ascii"
        print(text.encode(encoding, "replace").decode(encoding))
    return None


def labels(tokens: Sequence[str]) -> list[str]:
    """Tokens as people read them."""
    names = {"<s>": "start", "</s>": "end", "<pad>": "padding", "<unk>": "unknown"}
    return [names.get(token) or clean(token) for token in tokens]


def in_notebook() -> bool:
    """True in the kernel of a notebook: Jupyter, JupyterLab, VS Code, Colab."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def use_color(stream: Any) -> bool:
    """True for a terminal, unless NO_COLOR (no-color.org) is in the environment."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(stream, "isatty", lambda: False)())
