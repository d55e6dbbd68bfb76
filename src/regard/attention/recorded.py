"""One recorded attention call: its weights, top keys, column sums and entropy.

Dot-product energies with softmax, nearly all attention, are computed in tiles: one matmul and one softmax per
tile, over the keys that the mask leaves visible. At most one tile of the matrix exists at a time. Every other
call is computed by the reference, some rows at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.bias import Bias
from regard.attention.call import Call
from regard.attention.column_sums import column_sums_by_triton
from regard.attention.diversity import HeadDiversity, head_diversity
from regard.attention.kernels import reference
from regard.attention.precision import compute_dtype
from regard.attention.score_tiles import ScoreTile, can_tile, for_each_tile
from regard.attention.selection import IndexLike, Selection
from regard.errors import OptionError
from regard.pictures.attention_views import attention_picture, shown_layer
from regard.pictures.picture import Picture
from regard.pictures.pictured import Pictured
from regard.pictures.shown_layers import show_layers

MAX_SHOWN = 1 << 22  # weights of one item that a notebook computes and shows without a request


class Recorded(Pictured):
    """One recorded attention call. Every method takes `batch`, `head` and `query` to select rows."""

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call

    @property
    def call(self) -> Call:
        if self._call is None:
            raise OptionError(
                "a call passed to on_call is valid until on_call returns; use it there, or use watch without "
                "on_call, which keeps calls"
            )
        return self._call

    def expire(self) -> None:
        """Release the call: its tensors belong to the model and may be overwritten."""
        self._call = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(*leading, heads, Tq, Tk) of the full matrix."""
        return (*self.call.leading, self.call.heads, self.call.Tq, self.call.Tk)

    @property
    def edited(self) -> bool:
        """Whether `regard.intervene` set the weights; earlier stages are those of the model."""
        return self.call.edited is not None

    @torch.no_grad()
    def weights(
        self,
        *,
        batch: IndexLike = None,
        head: IndexLike = None,
        query: IndexLike = None,
        stage: str = "gated",
    ) -> Tensor:
        """The selected rows of the attention matrix, exact. An int removes its axis, as in indexing."""
        selection = Selection.of(self.call, batch, head, query)
        reference.check_stage(stage)
        if stage not in ("normalised", "gated") or not can_tile(selection):
            return selection.squeeze(_weights_by_reference(selection, stage))
        weights = torch.zeros(selection.shape, dtype=self.call.dtype, device=self.call.query.device)
        merged = weights.view(-1, *weights.shape[-3:])  # (sequences, heads, queries, Tk)

        def fill(tile: ScoreTile) -> None:
            tile.part_of(merged, tile.columns).copy_(tile.weights(gated=stage == "gated"))

        for_each_tile(selection, fill)
        return selection.squeeze(weights)

    @torch.no_grad()
    def top(
        self, k: int, *, batch: IndexLike = None, head: IndexLike = None, query: IndexLike = None
    ) -> tuple[Tensor, Tensor]:
        """The k largest weights of each row and the indices of their keys, both (..., k)."""
        call = self.call
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= call.Tk:
            raise OptionError(f"k must be between 1 and the {call.Tk} keys, got {k!r}")
        selection = Selection.of(call, batch, head, query)
        # Tiles leave out hidden keys, whose weight 0 is larger than weights that a gate makes negative.
        if not can_tile(selection) or isinstance(call.gate, Bias):
            tops = [_weights_by_reference(chunk, "gated").topk(k, -1) for chunk in selection.chunks()]
            values, keys = (torch.cat(list(x), -2) for x in zip(*tops, strict=True))
            return selection.squeeze(values), selection.squeeze(keys)
        shape, device = (*selection.shape[:-1], k), call.query.device
        values = torch.zeros(shape, dtype=call.dtype, device=device)
        # A row that sees nothing keeps weights of 0 at the first k keys.
        keys = torch.arange(k, device=device).expand(shape).clone()
        merged_values, merged_keys = (x.view(-1, *shape[-3:]) for x in (values, keys))

        def fill(tile: ScoreTile) -> None:
            tile_values, tile_keys = tile.top(k)
            tile.part_of(merged_values).copy_(tile_values)
            tile.part_of(merged_keys).copy_(tile_keys)

        for_each_tile(selection, fill, min_keys=k)
        return selection.squeeze(values), selection.squeeze(keys)

    @torch.no_grad()
    def column_sums(
        self, *, batch: IndexLike = None, head: IndexLike = None, query: IndexLike = None
    ) -> Tensor:
        """The attention that each key receives from the selected queries, (..., Tk), in at least float32."""
        selection = Selection.of(self.call, batch, head, query)
        if head is None and query is None and (sums := column_sums_by_triton(self.call)) is not None:
            return sums if batch is None else sums[batch]
        *outer, _, Tk = selection.shape
        total = torch.zeros((*outer, Tk), dtype=compute_dtype(self.call.dtype), device=self.call.query.device)
        if not can_tile(selection):
            for chunk in selection.chunks():
                total += _weights_by_reference(chunk, "gated").to(total.dtype).sum(-2)
            return selection.squeeze(total, has_queries=False)
        merged = total.view(-1, *total.shape[-2:])[:, :, None]  # (sequences, heads, 1, Tk)

        def add(tile: ScoreTile) -> None:
            tile.part_of(merged, tile.columns, all_rows=True)[:, :, 0].add_(tile.column_sums())

        for_each_tile(selection, add)
        return selection.squeeze(total, has_queries=False)

    @torch.no_grad()
    def entropy(self, *, batch: IndexLike = None, head: IndexLike = None, query: IndexLike = None) -> Tensor:
        """−Σ a log a of each row in nats, in at least float32: 0 for one key, log Tk for uniform weights."""
        selection, dtype = Selection.of(self.call, batch, head, query), compute_dtype(self.call.dtype)
        if not can_tile(selection):
            chunks = [
                torch.special.entr(_weights_by_reference(chunk, "gated").to(dtype)).sum(-1, keepdim=True)
                for chunk in selection.chunks()
            ]
            return selection.squeeze(torch.cat(chunks, -2)).squeeze(-1)
        entropy = torch.zeros((*selection.shape[:-1], 1), dtype=dtype, device=self.call.query.device)
        merged = entropy.view(-1, *entropy.shape[-3:])  # (sequences, heads, queries, 1)

        def fill(tile: ScoreTile) -> None:
            tile.part_of(merged)[..., 0].copy_(tile.entropy())

        for_each_tile(selection, fill)
        return selection.squeeze(entropy).squeeze(-1)

    def head_diversity(self, *, batch: IndexLike = None, query: IndexLike = None) -> HeadDiversity:
        """How different the heads are: mean Jensen–Shannon divergence of two heads, and their rank."""
        if isinstance(query, int) and not isinstance(query, bool):
            query = [query]  # keeps the axis
        return head_diversity(self.weights(batch=batch, query=query))

    def picture(
        self,
        view: str | None = None,
        *,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        batch: int = 0,
        head: int | None = None,
        title: str = "",
    ) -> Picture:
        """Return a picture of the weights, which a notebook shows; `save` and `plot` take the same options.

        >>> with regard.watch() as seen:
        ...     out = regard.attend(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8))
        >>> seen["attend.0"].picture("lines", rows=["a", "b", "c"], head=1).save("lines.svg").name
        'lines.svg'

        Args:
            view: "heatmap" (the default), "lines", "text" or "grid", a matrix for each head.
            rows: the tokens of the queries; by default their positions.
            columns: the tokens of the keys; by default `rows`, or their positions.
            batch: the item of the batch.
            head: a head, from 0; by default the mean of all, except in a grid.
            title: the headline.
        """
        weights = self._one_item(batch)
        return attention_picture(
            {"": weights}, view, rows=rows, columns=columns, head=head, title=title, note=""
        )

    def show(
        self,
        *,
        rows: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        batch: int = 0,
        head: int | None = None,
        title: str = "attention",
    ) -> Any:
        """Show the weights: in a notebook an interactive view of all heads, elsewhere text.

        The arguments are those of `picture`; `head` is shown first.
        """
        weights = self._one_item(batch)
        return show_layers([shown_layer(title, weights, rows, columns)], 0, head, "")

    def _one_item(self, batch: int) -> Tensor:
        """The weights (heads, Tq, Tk) of one item; of several leading axes, counted over all."""
        if len(self.call.leading) == 1:
            return self.weights(batch=batch)
        items = self.weights().reshape(-1, *self.shape[-3:])
        if isinstance(batch, bool) or not isinstance(batch, int) or not -len(items) <= batch < len(items):
            raise OptionError(f"batch must be an integer below the {len(items)} items, got {batch!r}")
        return items[batch]

    def _repr_html_(self) -> str | None:
        """Every head of the first item, for a notebook; None if there are more than MAX_SHOWN weights."""
        if self._call is None or not 0 < self.call.heads * self.call.Tq * self.call.Tk <= MAX_SHOWN:
            return None
        return self.picture("grid")._repr_html_()

    def __repr__(self) -> str:
        if self._call is None:
            return "a call that was passed to on_call, no longer kept"
        call = self.call
        options = [
            f"{call.energy}".split("(")[0],
            *(f"{x}" for x in (call.mask, call.bias) if x is not None),
            f"{call.normalize}",
            *(["edited"] if self.edited else []),
        ]
        return f"{tuple(self.shape)} {' · '.join(map(_shorten, options))}"


def _shorten(text: str, width: int = 60) -> str:
    line = text.splitlines()[0]
    return line if line == text and len(line) <= width else f"{line[:width]}…"


def _weights_by_reference(selection: Selection, stage: str) -> Tensor:
    call = selection.call
    grid = call.grid(queries=selection.query, head=selection.head, batch=selection.batch)
    inputs = reference.selected_inputs(call, grid)
    with call.autocast_context():
        return reference.weigh(call, inputs, stage)[0].to(call.dtype).expand(selection.shape)
