"""Convert the attention changes in a request of the page to edits for `regard.intervene`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from regard.attention.edits import CallWeights, Edit, Pinned, Uniform, Zero
from regard.decoding.attention_weights import kind_of
from regard.errors import OptionError
from regard.serving.requests import Body

Weight = Annotated[float, Field(ge=0, le=1)]


class AttentionChange(Body):
    """One change: which map, head and row, and what happens to the weights."""

    map: str = Field(max_length=200, description="Name of the attention map, as in `regard.watch`.")
    change: Literal["uniform", "zero", "pin", "weights"] = Field(
        description="uniform: equal weights; zero: no weights; pin: all weight on one key; weights: as given."
    )
    head: int | None = Field(None, ge=0, description="The head; default: all heads of the map.")
    row: int | None = Field(None, ge=0, description="The row (query position); default: all rows.")
    key: int | None = Field(None, ge=0, description="The column that `pin` puts all weight on.")
    weights: tuple[Weight, ...] | None = Field(
        None, max_length=10_000, description="The weights of a row, by column, for `weights`."
    )


@dataclass(frozen=True, eq=False)
class GivenRow(Edit):
    """The same weights in every selected row; keys beyond them, and masked ones, get 0."""

    weights: tuple[float, ...]

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        row = torch.zeros_like(rows.weights[..., :1, :])
        count = min(len(self.weights), row.shape[-1])
        row[..., :count] = torch.tensor(self.weights[:count]).to(row)
        return row.expand(rows.weights.shape)


def as_edits(changes: tuple[AttentionChange, ...]) -> dict[str, list[Edit]]:
    """Return the edits by name of the map."""
    edits: dict[str, list[Edit]] = {}
    for change in changes:
        edits.setdefault(change.map, []).append(_as_edit(change))
    return edits


def _as_edit(change: AttentionChange) -> Edit:
    if (change.key is not None) != (change.change == "pin"):
        raise OptionError("change 'pin' needs key, the column that gets all weight; other changes take none")
    if (change.weights is not None) != (change.change == "weights"):
        raise OptionError("change 'weights' needs weights, one per column; other changes take none")
    if change.weights is not None:
        return GivenRow(change.weights, heads=change.head, queries=change.row)
    if change.change == "uniform":
        return Uniform(heads=change.head, queries=change.row)
    if change.change == "zero":
        return Zero(heads=change.head, queries=change.row)
    assert change.key is not None
    rows: int | slice | None = change.row
    if rows is None and kind_of(change.map) == "decoder":
        rows = slice(change.key, None)  # earlier positions do not see the key
    return Pinned(change.key, heads=change.head, queries=rows)
