"""Weights of one or several layers as a picture, in any view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from regard.arguments import label_list, one_of
from regard.errors import OptionError, ShapeError
from regard.pictures.head_grid import HeadGrid
from regard.pictures.matrix_picture import VIEWS, MatrixPicture
from regard.pictures.picture import Picture
from regard.pictures.shown_layers import ShownLayer

ALL_VIEWS = (*VIEWS, "grid")


def attention_picture(
    layers: Mapping[str, Tensor],
    view: str | None = None,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    head: int | None = None,
    title: str = "",
    note: str = "",
    axes: tuple[str, str] = ("query", "key"),
) -> Picture:
    """Draw weights (heads, rows, columns) by layer: a grid of all heads, or one head or the mean of all.

    `axes` are the names of rows and columns. `note` is extended by the head, or by what the mean is of.
    """
    chosen_view: str = one_of("view", "heatmap" if view is None else view, ALL_VIEWS)
    for weights in layers.values():
        if head is not None and (isinstance(head, bool) or not isinstance(head, int)):
            raise OptionError(f"head must be an integer from 0, got {head!r}")
        if head is not None and not -len(weights) <= head < len(weights):
            raise OptionError(f"head {head} does not exist; there are {len(weights)}, counted from 0")
    first = next(iter(layers.values()))
    if chosen_view == "grid":
        if head is not None:
            raise OptionError("view='grid' draws every head; leave head out, or take another view")
        size = f"{first.shape[-2]} × {first.shape[-1]} tokens, {axes[0]} × {axes[1]}"
        return HeadGrid(layers, title=title, note=", ".join(filter(None, (note, size))))
    chosen = [weights if head is None else weights[[head]] for weights in layers.values()]
    mean = torch.cat(chosen).mean(0)  # (heads of all layers, rows, columns) → (rows, columns)
    heads = sum(map(len, chosen)) if head is None else 1
    which = f"head {head % len(first)}" if head is not None else f"mean of {heads} heads" if heads > 1 else ""
    if columns is None and mean.shape[0] == mean.shape[1]:
        columns = rows
    labels = _labels("rows", rows, mean.shape[0]), _labels("columns", columns, mean.shape[1])
    return MatrixPicture(mean, *labels, chosen_view, title, ", ".join(filter(None, (note, which))), *axes)


def shown_layer(
    title: str, weights: Tensor, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> ShownLayer:
    """A layer for `show_layers`; without tokens its rows and columns are numbered."""
    if columns is None and weights.shape[1] == weights.shape[2]:
        columns = rows
    tokens = _labels("rows", rows, weights.shape[1]), _labels("columns", columns, weights.shape[2])
    return ShownLayer(title, weights, *tokens)


def _labels(name: str, labels: Sequence[str] | None, count: int) -> list[str]:
    """The labels as strings; positions if there are none."""
    if labels is None:
        return [str(i) for i in range(count)]
    labels = label_list(name, labels)
    if len(labels) != count:
        raise ShapeError(f"{name} must have a token for each of the {count} {name}, got {len(labels)}")
    return list(labels)
