"""Edits of attention weights for `regard.intervene`: uniform, permuted, zero, pinned, given, computed."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import cast

import torch
from torch import Tensor

from regard.arguments import integer, quoted
from regard.attention.call import Call
from regard.attention.selection import check_index
from regard.errors import OptionError, ShapeError

Indices = int | slice | Sequence[int] | None  # None: all
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CallWeights:
    """The attention weights of one call, as an edit sees them.

    Attributes:
        weights: (*leading, heads, Tq, Tk), after normaliser and gate, before dropout.
        allowed: the keys that the mask allows, of the same shape.
        name: the name of the call.
        positions: the position of each query, (Tq,) or (batch, Tq), on the CPU; None: unknown.
    """

    weights: Tensor
    allowed: Tensor
    name: str
    positions: Tensor | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Edit:
    """A change of attention weights. A subclass defines `apply`.

    Args:
        heads: change these heads only, an index or several; negative ones count from the last.
        queries: change the rows of the queries at these positions only: an integer, a slice or several
            integers. Positions count from the start of the sequence, also when a decoder runs step by step.
        batch: change these rows of the batch only. In a search, rows are sentences × beams.
    """

    heads: Indices = None
    queries: Indices = None
    batch: Indices = None
    keeps_mask = True  # False: the edit may give weight to masked keys

    def __post_init__(self) -> None:
        for name in ("heads", "queries", "batch"):
            _check_indices(f"{type(self).__name__}'s {name}", getattr(self, name), negative=name == "heads")

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        """New weights of the shape of `rows.weights`; only the `selected` rows of them are used.

        `selected` broadcasts to (*leading, heads, Tq, 1); None: all.
        """
        raise NotImplementedError

    def __call__(self, rows: CallWeights) -> Tensor | None:
        """The weights after the edit; None if it selects no row of this call."""
        selected = self._selected(rows)
        if selected is not None and not bool(selected.any()):
            return None
        new = self.apply(rows, selected)
        if self.keeps_mask:
            new = new.masked_fill(~rows.allowed, 0.0)
        return new if selected is None else torch.where(selected.to(new.device), new, rows.weights)

    def _selected(self, rows: CallWeights) -> Tensor | None:
        """The rows to change, broadcastable to (*leading, heads, Tq, 1), on the CPU; None: all."""
        *leading, heads, _, _ = rows.weights.shape
        conditions: list[Tensor] = []
        if self.heads is not None:
            index = check_index(f"{rows.name}: heads", self.heads, heads)
            is_selected = torch.zeros(heads, dtype=torch.bool, device="cpu")
            is_selected[slice(None) if index is None else index] = True
            conditions.append(is_selected[:, None, None])
        if self.queries is not None:
            if rows.positions is None:
                raise OptionError(
                    f"queries= needs positions, and {rows.name} belongs to a recurrent decoder, whose steps "
                    "have none; leave queries= out"
                )
            is_selected = _is_in(rows.positions, self.queries)  # (Tq,) or (batch, Tq)
            per_row = is_selected[..., None] if is_selected.ndim == 1 else is_selected[:, None, :, None]
            conditions.append(per_row)
        if self.batch is not None:
            if len(leading) != 1:
                raise OptionError(
                    f"batch= selects from one batch axis, and {rows.name} has {len(leading)}; leave it out"
                )
            is_selected = _is_in(torch.arange(leading[0], device="cpu"), self.batch)
            conditions.append(is_selected[:, None, None, None])
        return reduce(operator.and_, conditions) if conditions else None


@dataclass(frozen=True, eq=False)
class Uniform(Edit):
    """Equal weights on all keys that the mask allows."""

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        count = rows.allowed.sum(-1, keepdim=True).clamp(min=1)
        return rows.allowed.to(rows.weights.dtype) / count


@dataclass(frozen=True, eq=False)
class Zero(Edit):
    """Weights of 0: the selected heads, or all, add nothing."""

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        return torch.zeros_like(rows.weights)


@dataclass(frozen=True, eq=False)
class Permuted(Edit):
    """The weights of each row in random order, among the keys that the mask allows.

    A seed gives the same permutations in every run. They differ between rows, heads, layers and decoding
    steps, but not between the steps of a recurrent decoder, which has no positions.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("Permuted's seed", self.seed, 0)

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        positions = rows.positions
        start = int(positions.reshape(-1)[0]) if positions is not None and positions.numel() else 0
        seed = zlib.crc32(f"{self.seed} {rows.name} {start}".encode())
        generator = torch.Generator("cpu").manual_seed(seed)  # the same on every device
        noise = torch.rand(rows.weights.shape, generator=generator, device="cpu").to(rows.weights.device)
        masked = ~rows.allowed
        # Allowed keys first: once in random order, once in their own.
        source = noise.masked_fill(masked, 2.0).argsort(-1)
        target = masked.to(torch.uint8).argsort(dim=-1, stable=True)
        return torch.zeros_like(rows.weights).scatter(-1, target, rows.weights.gather(-1, source))


@dataclass(frozen=True, eq=False)
class Pinned(Edit):
    """All weight on one key.

    Args:
        key: the index of the key. It must be allowed by the mask in all selected rows.
    """

    key: int

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("Pinned's key", self.key, 0)

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        count = rows.weights.shape[-1]
        if self.key >= count:
            raise OptionError(
                f"Pinned({self.key}): {rows.name} has {count} keys here, counted from 0; choose one of them, "
                "or select later queries by queries="
            )
        allowed = rows.allowed[..., self.key, None]  # (..., Tq, 1)
        hidden = ~allowed if selected is None else ~allowed & selected.to(allowed.device)
        if bool(hidden.any()):
            at = hidden.nonzero()[0].tolist()
            place = f"row {at[0]} of the batch" if len(at) > 3 else "a row"
            if rows.positions is not None:
                positions = rows.positions if rows.positions.ndim == 1 else rows.positions[at[0]]
                place += f", query {int(positions[at[-2]])}"
            raise OptionError(
                f"Pinned({self.key}): the mask of {rows.name} hides key {self.key} from {place}; "
                "choose another key, or select rows that see it by queries= or batch="
            )
        new = torch.zeros_like(rows.weights)
        new[..., self.key] = 1.0
        return new


@dataclass(frozen=True, eq=False)
class Weights(Edit):
    """Weights from a tensor. They need not sum to 1, and may give weight to masked keys.

    Args:
        tensor: broadcasts to (batch, heads, Tq, Tk) of the call. A gradient passes to it.
    """

    tensor: Tensor = field(repr=False)
    keeps_mask = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.tensor, Tensor) or self.tensor.is_complex():
            raise OptionError(f"Weights takes a tensor of real numbers, got {quoted(self.tensor)}")

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        return _expanded("the tensor of Weights", self.tensor, rows)


@dataclass(frozen=True, eq=False)
class Mapped(Edit):
    """The weights that a function returns. A plain function in `regard.intervene` is `Mapped(function)`.

    Args:
        function: weights (..., heads, Tq, Tk) → new weights, in at least float32. Masked keys stay 0.
    """

    function: Function

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function) or isinstance(self.function, type):
            raise OptionError(f"Mapped takes a function of the weights, got {quoted(self.function)}")

    def apply(self, rows: CallWeights, selected: Tensor | None) -> Tensor:
        new = self.function(rows.weights)
        if not isinstance(new, Tensor):
            raise OptionError(
                f"{rows.name}: the function must return a tensor of weights, got {type(new).__name__}"
            )
        return _expanded("what the function returned", new, rows)


def as_edits(name: str, given: object) -> list[Edit]:
    """The edits of one entry: an edit, a function, or several in a list."""
    entries = list(given) if isinstance(given, list | tuple) else [given]
    edits = []
    for entry in entries:
        if isinstance(entry, Edit):
            edits.append(entry)
        elif callable(entry) and not isinstance(entry, type):
            edits.append(Mapped(cast(Function, entry)))
        else:
            what = (
                f"the class {entry.__name__}, not an object of it"
                if isinstance(entry, type)
                else quoted(entry)
            )
            raise OptionError(
                f"{name!r} must be given an edit such as Uniform(), a function of the weights or a list of "
                f"them, got {what}"
            )
    if not edits:
        raise OptionError(f"{name!r} has an empty list of edits; give at least one, such as Uniform()")
    return edits


def visible_pairs(call: Call) -> Tensor:
    """True where a query may see a key, (*leading, heads, Tq, Tk).

    A bias hides a key too, if it is −∞ or, as in masks of Transformers, the lowest number of its dtype.
    """
    grid = call.grid()
    allowed = torch.ones((), dtype=torch.bool, device=call.query.device)
    if call.mask is not None:
        allowed = call.mask.allowed(grid)
    if call.bias is not None:
        added = call.bias.values(grid, call.query)
        allowed = allowed & ~(added <= torch.finfo(added.dtype).min / 2)  # ~: NaN hides nothing
    return allowed.expand(*call.leading, call.heads, call.Tq, call.Tk)


def _expanded(what: str, new: Tensor, rows: CallWeights) -> Tensor:
    shape = tuple(rows.weights.shape)
    try:
        return new.to(rows.weights.device, rows.weights.dtype).expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"{what} is {tuple(new.shape)}, and the weights of {rows.name} are {shape} here; "
            "give a shape that broadcasts to it"
        ) from None


def _check_indices(name: str, given: object, negative: bool) -> None:
    """Raise unless this is an integer, a slice or a list of integers; negative ones only if allowed."""
    if given is None:
        return
    numbers = [given.start, given.stop] if isinstance(given, slice) else given
    if not isinstance(given, slice | Sequence) or isinstance(given, str):
        numbers = [given]
    if isinstance(given, slice) and given.step not in (None, 1):
        raise OptionError(f"{name} must be a slice without a step, got {given}")
    for number in numbers:  # type: ignore[union-attr]
        if isinstance(given, slice) and number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int):
            raise OptionError(
                f"{name} must be an integer, a slice or a list of integers, got {quoted(given)}"
            )
        if number < 0 and not negative:
            raise OptionError(f"{name} must not be negative, got {quoted(given)}")


def _is_in(positions: Tensor, wanted: Indices) -> Tensor:
    if isinstance(wanted, slice):
        inside = positions >= (wanted.start or 0)
        return inside if wanted.stop is None else inside & (positions < wanted.stop)
    numbers = [wanted] if isinstance(wanted, int) else list(wanted or ())
    return torch.isin(positions, torch.tensor(numbers, dtype=torch.long, device="cpu"))
