"""Changes of attention that the page requests, as edits of `regard.intervene`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from regard.attention.edits import Edit, Pinned, Uniform, Zero
from regard.decoding.attention_weights import kind_of
from regard.errors import OptionError
from regard.serving.requests import Body


class AttentionChange(Body):
    """One change: which map, head and row, and what happens to the weights."""

    map: str = Field(max_length=200, description="Name of the attention map, as in `regard.watch`.")
    change: Literal["uniform", "zero", "pin"] = Field(
        description="uniform: equal weights; zero: no weights; pin: all weight on one key."
    )
    head: int | None = Field(None, ge=0, description="The head; default: all heads of the map.")
    row: int | None = Field(None, ge=0, description="The row (query position); default: all rows.")
    key: int | None = Field(None, ge=0, description="The column that `pin` puts all weight on.")


def as_edits(changes: tuple[AttentionChange, ...]) -> dict[str, list[Edit]]:
    """Return the edits by name of the map."""
    edits: dict[str, list[Edit]] = {}
    for change in changes:
        edits.setdefault(change.map, []).append(_as_edit(change))
    return edits


def _as_edit(change: AttentionChange) -> Edit:
    if (change.key is not None) != (change.change == "pin"):
        raise OptionError("key is the column that change 'pin' needs, and no other change takes it")
    if change.change == "uniform":
        return Uniform(heads=change.head, queries=change.row)
    if change.change == "zero":
        return Zero(heads=change.head, queries=change.row)
    assert change.key is not None
    rows: int | slice | None = change.row
    if rows is None and kind_of(change.map) == "decoder":
        rows = slice(change.key, None)  # earlier positions do not see the key
    return Pinned(change.key, heads=change.head, queries=rows)
