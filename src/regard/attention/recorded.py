"""One attention call that was seen, and the questions one asks of it: rows, top keys, column sums, entropy.

Dot products under softmax, which is nearly all attention, are answered by tiles: one matmul and one softmax each, over the keys
that the mask leaves to these queries. No more than a tile of the matrix exists at a time. Everything else is answered by the
reference, some rows at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention import kernel_inputs
from regard.attention.call import Call
from regard.attention.kernels import reference, triton
from regard.attention.machine import Machine
from regard.attention.precision import exact_dtype
from regard.attention.score_tiles import Tile, has_tiles, scan
from regard.attention.selection import Pick, Selection, autocast_of
from regard.errors import OptionError


class Recorded:
    """One attention call that was seen. Every question may be asked of some batch items, heads and queries only."""

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call

    @property
    def call(self) -> Call:
        if self._call is None:
            raise OptionError(
                "what on_call is given is true until it returns; ask there, or use watch without on_call, which keeps calls"
            )
        return self._call

    def expire(self) -> None:
        """Let go of the call: its tensors are the model's own and may be written over."""
        self._call = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(*leading, heads, Tq, Tk) of the whole matrix."""
        return (*self.call.leading, self.call.heads, self.call.Tq, self.call.Tk)

    @torch.no_grad()
    def weights(
        self, *, batch: Pick = None, head: Pick = None, query: Pick = None, stage: str = "gated"
    ) -> Tensor:
        """Exact rows of the matrix, only those asked for. A whole number takes its axis away, as in indexing."""
        part = Selection.of(self.call, batch, head, query)
        reference.check_stage(stage)
        if stage not in ("normalised", "gated") or not has_tiles(part):
            return part.squeeze(_by_reference(part, stage))
        found = torch.zeros(part.shape, dtype=self.call.dtype, device=self.call.query.device)
        flat = found.view(-1, *found.shape[-3:])

        def fill(tile: Tile) -> None:
            tile.of(flat, tile.columns).copy_(tile.weights(gated=stage == "gated"))

        scan(part, fill)
        return part.squeeze(found)

    @torch.no_grad()
    def top(
        self, k: int, *, batch: Pick = None, head: Pick = None, query: Pick = None
    ) -> tuple[Tensor, Tensor]:
        """The k largest weights of each row and the keys they stand at."""
        call = self.call
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= call.Tk:
            raise OptionError(f"k must be between 1 and the {call.Tk} keys, got {k!r}")
        part = Selection.of(call, batch, head, query)
        if not has_tiles(part):
            found = [_by_reference(step, "gated").topk(k, -1) for step in part.steps()]
            return tuple(part.squeeze(torch.cat(list(x), -2)) for x in zip(*found, strict=True))  # type: ignore[return-value]
        shape = (*part.shape[:-1], k)
        values = torch.zeros(shape, dtype=call.dtype, device=call.query.device)
        at = (
            torch.arange(k, device=call.query.device).expand(shape).clone()
        )  # of a row that sees nothing: the first keys
        flat, flat_at = values.view(-1, *shape[-3:]), at.view(-1, *shape[-3:])

        def fill(tile: Tile) -> None:
            weights, keys = tile.top(k)
            tile.of(flat).copy_(weights)
            tile.of(flat_at).copy_(keys)

        scan(part, fill, least=k)
        return part.squeeze(values), part.squeeze(at)

    @torch.no_grad()
    def column_sums(self, *, batch: Pick = None, head: Pick = None, query: Pick = None) -> Tensor:
        """How much attention each key receives from the queries asked for, (..., Tk); at least float32."""
        part = Selection.of(self.call, batch, head, query)
        if head is None and query is None and (found := _sums_by_kernel(self.call)) is not None:
            return found if batch is None else found[batch]
        *outer, _, Tk = part.shape
        total = torch.zeros((*outer, Tk), dtype=exact_dtype(self.call.dtype), device=self.call.query.device)
        if not has_tiles(part):
            for step in part.steps():
                total += _by_reference(step, "gated").to(total.dtype).sum(-2)
            return part.squeeze(total, rows=False)
        flat = total.view(-1, *total.shape[-2:])

        def add(tile: Tile) -> None:
            tile.of(flat[:, :, None], tile.columns, rows=False)[:, :, 0].add_(tile.column_sums())

        scan(part, add)
        return part.squeeze(total, rows=False)

    @torch.no_grad()
    def entropy(self, *, batch: Pick = None, head: Pick = None, query: Pick = None) -> Tensor:
        """−Σ a log a of each row in nats: 0 is one key, log Tk all alike; at least float32."""
        part = Selection.of(self.call, batch, head, query)
        if not has_tiles(part):
            dtype = exact_dtype(self.call.dtype)
            found = [
                torch.special.entr(_by_reference(step, "gated").to(dtype)).sum(-1, keepdim=True)
                for step in part.steps()
            ]
            return part.squeeze(torch.cat(found, -2)).squeeze(-1)
        found = torch.zeros(
            (*part.shape[:-1], 1), dtype=exact_dtype(self.call.dtype), device=self.call.query.device
        )
        flat = found.view(-1, *found.shape[-3:])

        def fill(tile: Tile) -> None:
            tile.of(flat)[..., 0].copy_(tile.entropy())

        scan(part, fill)
        return part.squeeze(found).squeeze(-1)

    def __repr__(self) -> str:
        if self._call is None:
            return "a call that on_call was given, no longer kept"
        call = self.call
        parts = [
            f"{call.energy}".split("(")[0],
            *(f"{x}" for x in (call.mask, call.bias) if x is not None),
            f"{call.normalize}",
        ]
        return f"{tuple(self.shape)} {' · '.join(map(_short, parts))}"


def _short(text: str, width: int = 60) -> str:
    line = text.splitlines()[0]
    return line if line == text and len(line) <= width else f"{line[:width]}…"


def _sums_by_kernel(call: Call) -> Tensor | None:
    """Column sums of a whole call by our Triton kernel, where it can run the call: no tile of the matrix is written out."""
    machine = Machine.of(call.query, call.key)
    if triton.has_sinks(call) or triton.Triton().refuses(call, machine) is not None:
        return None
    q, k, _, scale = kernel_inputs.dot_inputs(call, grouped=True)
    if scale <= 0 or k.shape[1] not in (call.heads, call.heads // call.groups):
        return None
    band = triton.band_of(call.mask, call)
    assert band is not None
    return triton.banded_column_sums(q, k, scale, band, triton.slopes_of(call)).view(
        *call.leading, call.heads, call.Tk
    )


def _by_reference(part: Selection, stage: str) -> Tensor:
    call = part.call
    cut = reference.cut(call, call.grid(queries=part.query, head=part.head, batch=part.batch))
    with autocast_of(call):
        return reference.weigh(call, cut, stage)[0].to(call.dtype).expand(part.shape)
