"""Scores of a recorded call, tile by tile: one matmul each, over the keys that the mask leaves to these queries.

For dot products under softmax, which is nearly all attention. No more than a tile of the matrix exists at a time. Plain torch, for
any device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.bias import Bias
from regard.attention.call import Call
from regard.attention.grid import Index, take, take_some
from regard.attention.kernel_inputs import level_rows
from regard.attention.mask import EMPTY, And, Mask
from regard.attention.precision import HALF, exact, exact_dtype, no_autocast
from regard.attention.selection import Selection, autocast_of

CPU_TILE = 1 << 18  # pairs of a tile: 1 MiB in float32, which stays in the cache of a core
GPU_TILE = 1 << 26  # 256 MiB in float32
ROWS = 128  # queries of a tile, unless few keys leave room for more
BOUND = (
    60.0  # exp of it times any number of keys is finite in float32, and exp of its negative is no less exact
)


def has_tiles(part: Selection) -> bool:
    call = part.call
    return (
        call.energy.form == "dot"
        and not call.per_head_energy
        and call.is_softmax
        and 0 not in (*part.shape, call.key.shape[-1])
    )


@dataclass
class Tile:
    """Scores of some sequences, heads and queries with some keys, (sequences, heads, queries, keys), before the mask.

    Each tile answers one question, which may write over the scores.
    """

    scores: Tensor
    rules: _Rules
    gate: Tensor | None
    temperature: float
    bounded: bool  # no score is beyond ±BOUND, so exp needs no largest score taken off first
    may_be_empty: bool  # a row may see nothing
    sequences: slice
    heads: slice
    rows: slice  # among the queries asked for
    columns: slice

    def of(self, x: Tensor, columns: slice | None = None, rows: bool = True) -> Tensor:
        """The part of x, (sequences, heads, queries, ·), that this tile is about."""
        x = x[self.sequences, self.heads, self.rows if rows else slice(None)]
        return x if columns is None else x[..., columns]

    def weights(self, gated: bool = True) -> Tensor:
        x, factor = self.factored(gated)
        return x if factor is None else x.mul_(factor)

    def factored(self, gated: bool = True) -> tuple[Tensor, Tensor | None]:
        """The weights as x · factor, x like the scores and factor one number per row (None: 1)."""
        if self.bounded:
            x = self._exp(self._over_temperature())
            factor = (
                x.sum(-1, keepdim=True).clamp_(min=torch.finfo(x.dtype).tiny).reciprocal_()
            )  # a row that sees nothing is all 0
        else:
            self.rules.hide(self.scores, self.sequences, self.heads, -math.inf)
            empty = self.scores.amax(-1, keepdim=True) == -math.inf if self.may_be_empty else None
            x, factor = torch.softmax(self._shifted() if self.temperature != 1.0 else self.scores, -1), None
            x = x if empty is None else x.masked_fill_(empty, 0.0)
        return (x.mul_(self.gate) if self.gate is not None and gated else x), factor

    def column_sums(self) -> Tensor:
        x, factor = self.factored()
        flat = x.view(-1, *x.shape[-2:])
        factor = (
            flat.new_ones(1, 1, 1).expand(*flat.shape[:2], 1)
            if factor is None
            else factor.view(*flat.shape[:2], 1)
        )
        return torch.bmm(factor.mT, flat).view(*x.shape[:2], -1)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        x, factor = self.factored()
        values, keys = _topk(x, k)
        return (values if factor is None else values * factor), keys + self.columns.start

    def entropy(self) -> Tensor:
        """log Z − Σ exp(x)·x / Z with x the scores, or what they are below the largest: one exp per pair and no log."""
        if self.gate is not None:
            return torch.special.entr(self.weights()).sum(-1)
        if self.bounded:
            x = self._over_temperature()
            e, empty = self._exp(x.clone()), None
        else:
            self.rules.hide(self.scores, self.sequences, self.heads, -math.inf)
            empty = self.scores.amax(-1) == -math.inf if self.may_be_empty else None
            x = self._shifted().clamp_(min=-1e4)  # whose exp is 0, and 0 · −∞ would be NaN
            e = x.exp()
        Z = e.sum(-1)
        found = (e.mul_(x).sum(-1) / -Z).add_(Z.log())
        empty = Z == 0 if self.bounded and self.may_be_empty else empty
        return found if empty is None else found.masked_fill_(empty, 0.0)

    def _over_temperature(self) -> Tensor:
        return self.scores.div_(self.temperature) if self.temperature != 1.0 else self.scores

    def _exp(self, x: Tensor) -> Tensor:
        """exp of bounded scores, then 0 where masked: exp of −∞ takes ten times as long as that of a number on a CPU."""
        return self.rules.hide(x.exp_(), self.sequences, self.heads, 0.0)

    def _shifted(self) -> Tensor:
        """Scores less the largest of their row, over the temperature."""
        top = self.scores.amax(-1, keepdim=True)
        top = top.masked_fill_(top == -math.inf, 0.0) if self.may_be_empty else top
        found = self.scores.sub_(top)
        return found.div_(self.temperature) if self.temperature != 1.0 else found


def _topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """topk of each row. In long rows only the k blocks with the largest maxima are searched: no other can hold one of the k."""
    size = math.isqrt(x.shape[-1] // k)
    if size < 4:
        return x.topk(k, -1)
    whole = x.shape[-1] // size * size
    blocks = x[..., :whole].unflatten(-1, (-1, size))
    best = blocks.amax(-1).topk(k, -1).indices  # (..., k)
    found = blocks.gather(-2, best[..., None].expand(*best.shape, size)).flatten(-2)
    at = (best[..., None] * size + torch.arange(size, device=x.device)).flatten(-2)
    if whole < x.shape[-1]:
        rest = torch.arange(whole, x.shape[-1], device=x.device)
        found, at = (
            torch.cat([found, x[..., whole:]], -1),
            torch.cat([at, rest.expand(*at.shape[:-1], -1)], -1),
        )
    values, places = found.topk(k, -1)
    return values, at.gather(-1, places)


def scan(part: Selection, each: Callable[[Tile], None], least: int = 1) -> None:
    """Call `each` with every tile of the rows asked for. Keys that the mask hides from all its queries are left out of a tile,
    but `least` keys stay."""
    call = part.call
    with no_autocast(call.query):
        q, k, scale = _operands(part)
        bounds = _bounds(call, q, k, scale)
        q = q * scale if q.dtype not in HALF else q
        N, Hk, G, Tq, _ = q.shape
        tile = CPU_TILE if q.device.type == "cpu" else GPU_TILE
        rows = max(1, min(Tq, max(-(-ROWS // G), tile // (N * Hk * G * call.Tk))))
        most = 0 if q.dtype in HALF else min(N * Hk * G * rows * call.Tk, max(tile, G * rows * call.Tk))
        buffer = torch.empty(most, dtype=exact_dtype(q.dtype), device=q.device)
        rules = _Rules(part)
        for (start, stop), (low, high) in zip(_steps(Tq, rows), _spans(part, rows, least), strict=True):
            if low >= high:
                continue  # these queries see nothing: their weights are 0
            r, columns = slice(start, stop), slice(low, high)
            size = G * (stop - start) * (high - low)
            heads, sequences = max(1, min(Hk, tile // size)), max(1, min(N, tile // (size * Hk)))
            rules.move(r, columns)
            for n0, n1 in _steps(N, sequences):
                for h0, h1 in _steps(Hk, heads):
                    n, h = slice(n0, n1), slice(h0 * G, h1 * G)
                    a = q[n, h0:h1, :, r].reshape((n1 - n0) * (h1 - h0), G * (stop - start), -1)
                    b = k[n, h0:h1, columns].reshape((n1 - n0) * (h1 - h0), high - low, -1)
                    scores = _dot(a, b, scale, buffer).view(n1 - n0, (h1 - h0) * G, stop - start, high - low)
                    scores, gate = rules.apply(scores, n, h), rules.gate(n, h, scores)
                    bounded = all(x <= BOUND for row in bounds[n0:n1] for x in row[h0:h1])
                    each(
                        Tile(
                            scores,
                            rules,
                            gate,
                            call.temperature,
                            bounded,
                            rules.may_be_empty,
                            n,
                            h,
                            r,
                            columns,
                        )
                    )


def _bounds(call: Call, q: Tensor, k: Tensor, scale: float) -> list[list[float]]:
    """A number that no |score| / temperature of a sequence and key head is beyond, by Cauchy and Schwarz."""
    if call.bias is not None:
        return [[math.inf] * q.shape[1]] * q.shape[0]
    if call.softcap is not None:
        return [[call.softcap / call.temperature] * q.shape[1]] * q.shape[0]
    longest = [
        torch.linalg.vector_norm(x, dim=-1, dtype=exact_dtype(x.dtype)).flatten(2).amax(-1) for x in (q, k)
    ]
    return (longest[0] * longest[1] * abs(scale / call.temperature)).tolist()


def _operands(part: Selection) -> tuple[Tensor, Tensor, float]:
    """Queries (sequences, key heads, group, queries, dim) and keys (sequences, key heads, keys, dim) that are multiplied."""
    call = part.call
    query, key = call.query, call.key
    for i, index in enumerate(reversed(part.batch)):
        query, key = take(query, -4 - i, index), take_some(key, -4 - i, index)
    if part.head is not None:
        head = (
            torch.arange(call.heads, device="cpu")[part.head] if isinstance(part.head, slice) else part.head
        )
        shared = call.heads // key.shape[-3]
        query, key = take(query, -3, _narrow(head)), take(key, -3, _narrow(head // shared))
    query = take(query, -2, part.query)
    with autocast_of(call):
        form = call.energy.as_dot(query, key)
    query, key = form.query, form.key
    leading = query.shape[:-3]
    key = key.expand(*leading, *key.shape[-3:]) if key.shape[:-3] != leading else key
    query, key = query.reshape(-1, *query.shape[-3:]), key.reshape(-1, *key.shape[-3:])
    if query.dtype in HALF and not _multiplies_half(query):
        query, key = exact(query), exact(key)
    return query.unflatten(1, (key.shape[1], -1)), key.contiguous(), form.scale


def _narrow(index: Tensor) -> Index:
    """One number as a slice, which gives a view."""
    return slice(int(index), int(index) + 1) if index.numel() == 1 else index


def _multiplies_half(x: Tensor) -> bool:
    """Whether bmm takes half precision and gives the float32 sums: exact products at the speed of half precision."""
    return x.device.type == "cuda"


def _dot(a: Tensor, b: Tensor, scale: float, buffer: Tensor) -> Tensor:
    """a bᵀ in `buffer`, (batch, n, dim) and (batch, m, dim) → (batch, n, m), in at least float32; half precision is scaled here.

    On a CPU a new tensor for each tile would cost as much as its exp: the system clears its pages.
    """
    if a.dtype in HALF:
        return torch.bmm(a, b.mT, out_dtype=torch.float32).mul_(scale)  # type: ignore[call-overload]
    shape = len(a), a.shape[1], b.shape[1]
    return torch.bmm(a, b.mT, out=buffer[: math.prod(shape)].view(shape))


def _steps(n: int, step: int) -> list[tuple[int, int]]:
    return [(i, min(i + step, n)) for i in range(0, n, step)]


# ------------------------------------------------------------------------------------------- masks, biases, gates of a tile
class _Rules:
    """What mask, bias, soft cap and gate do to the scores of a tile."""

    def __init__(self, part: Selection) -> None:
        call = part.call
        self.part, self.call, self.leading = part, call, part.shape[:-3]
        self.may_be_empty = call.bias_may_mask or (
            call.mask is not None and not call.mask.covers(call.Tq, call.Tk)
        )
        self.hidden = self.added = self.factor = self.band = None
        self.edges: dict[tuple[int, ...], Tensor] = {}

    def move(self, rows: slice, columns: slice) -> None:
        """To the next rows, among those asked for, and their keys."""
        part, call = self.part, self.call
        index = _rows_of(part, rows)
        self.band = _band(call.mask, call.Tq, call.Tk) if isinstance(index, slice) else None
        self.first, self.columns = index.start if isinstance(index, slice) else 0, columns
        has_mask = call.mask is not None and self.band is None
        if not has_mask and call.bias is None and call.gate is None:
            return
        grid = call.grid(queries=index, keys=columns, head=part.head, batch=part.batch)
        query = _queries(part, index) if call.bias is not None or isinstance(call.gate, Bias) else call.query
        allowed = call.mask.allowed(grid) if has_mask and call.mask is not None else None
        added = None if call.bias is None else call.bias.values(grid, query)
        if added is not None and call.bias_may_mask:
            open_ = added != -math.inf
            allowed = open_ if allowed is None else allowed & open_
            added = level_rows(added) if call.softcap is None else added
        self.hidden = None if allowed is None else self._flat(~allowed)
        self.added = None if added is None else self._flat(added)
        if call.gate is not None:
            gate = call.gate
            self.factor = self._flat(
                gate.allowed(grid) if isinstance(gate, Mask) else gate.values(grid, query)
            )

    def _flat(self, x: Tensor) -> Tensor:
        """(*leading, heads, n, m), some axes 1 or missing, as (sequences or 1, heads or 1, n or 1, m or 1)."""
        x = x.reshape((1,) * (len(self.leading) + 3 - x.ndim) + tuple(x.shape))
        if any(n != 1 for n in x.shape[:-3]):
            x = x.expand(*self.leading, *x.shape[-3:])
        return x.reshape(-1, *x.shape[-3:])

    def _at(self, x: Tensor, sequences: slice, heads: slice) -> Tensor:
        x = x[sequences] if len(x) > 1 else x
        return x[:, heads] if x.shape[1] > 1 else x

    def apply(self, scores: Tensor, sequences: slice, heads: slice) -> Tensor:
        if self.added is not None:
            scores.add_(self._at(self.added, sequences, heads))
        if self.call.softcap is not None:
            scores.div_(self.call.softcap).tanh_().mul_(self.call.softcap)
        return scores

    def hide(self, x: Tensor, sequences: slice, heads: slice, value: float) -> Tensor:
        """x with `value`, 0 or −∞, where the mask hides a key."""
        if self.band is not None:
            self._hide_outside(x, *self.band, value)
        if self.hidden is not None:
            x.masked_fill_(self._at(self.hidden, sequences, heads), value)
        return x

    def _hide_outside(self, x: Tensor, low: int, high: int, value: float) -> None:
        """Mask the keys at the two edges of the band; those between are seen by all queries of the tile."""
        start, stop = self.first, self.first + x.shape[-2]
        first, last = self.columns.start, self.columns.stop
        left = (first, min(last, stop - 1 + low))  # keys before what the last query sees
        right = (max(first, start + high + 1), last)  # keys after what the first query sees
        if value == 0:
            if left[0] < left[1]:
                x.triu_(low + start - first)
            if right[0] < right[1]:
                x.tril_(high + start - first)
            return
        if left[1] > right[0]:
            left, right = (first, last), (last, last)  # a narrow band: no key is seen by all
        for a, b in (left, right):
            if a < b:
                x[..., a - first : b - first].masked_fill_(
                    self._edge(a - start, b - start, stop - start, low, high), value
                )

    def _edge(self, a: int, b: int, rows: int, low: int, high: int) -> Tensor:
        """Which of the keys a … b − 1, counted from the first query, are hidden; the same for most tiles."""
        if (a, b, rows) not in self.edges:
            device = self.call.query.device
            distance = torch.arange(a, b, device=device) - torch.arange(rows, device=device)[:, None]
            if len(self.edges) > 8:
                self.edges.clear()
            self.edges[a, b, rows] = (distance < low) | (distance > high)
        return self.edges[a, b, rows]

    def gate(self, sequences: slice, heads: slice, scores: Tensor) -> Tensor | None:
        return None if self.factor is None else self._at(self.factor, sequences, heads).to(scores.dtype)


def _queries(part: Selection, index: Index) -> Tensor:
    """The query vectors of a step, as a bias may read them."""
    query = take(take(part.call.query, -3, part.head), -2, index)
    for i, at in enumerate(reversed(part.batch)):
        query = take(query, -4 - i, at)
    return query


def _rows_of(part: Selection, rows: slice) -> Index:
    """The queries asked for in this step, as numbers of the call: a slice where they are neighbours."""
    if part.query is None:
        return rows
    if isinstance(part.query, slice):
        start, _, step = part.query.indices(part.call.Tq)
        if step == 1:
            return slice(start + rows.start, start + rows.stop)
    index = part.rows()[rows]
    return slice(int(index), int(index) + 1) if index.numel() == 1 else index


def _band(mask: Mask | None, Tq: int, Tk: int) -> tuple[int, int] | None:
    """(low, high) when exactly low ≤ key − query ≤ high is allowed."""
    if type(mask) is And:
        a, b = _band(mask.a, Tq, Tk), _band(mask.b, Tq, Tk)
        return None if a is None or b is None else (max(a[0], b[0]), min(a[1], b[1]))
    return None if mask is None else mask.static_band(Tq, Tk)


def _spans(part: Selection, rows: int, least: int) -> list[tuple[int, int]]:
    """For each step of queries the keys that any of them may see, as (first, last + 1)."""
    call, Tk = part.call, part.call.Tk
    steps = [_rows_of(part, slice(a, b)) for a, b in _steps(part.shape[-2], rows)]
    if call.mask is None:
        return [(0, Tk)] * len(steps)
    band = _band(call.mask, call.Tq, Tk)
    if band is not None:
        low, high = band
        found = [
            (max(0, s.start + low), min(Tk, s.stop + high)) if isinstance(s, slice) else (0, Tk)
            for s in steps
        ]  # fmt: skip
    elif part.query is None and len(steps) > 1:
        found = _spans_of_blocks(call.mask, call.Tq, Tk, rows, call.query.device)
    else:
        found = [(0, Tk)] * len(steps)
    return [(0, 0) if a >= b else _at_least(a, b, least, Tk) for a, b in found]


def _spans_of_blocks(mask: Mask, Tq: int, Tk: int, rows: int, device: torch.device) -> list[tuple[int, int]]:
    width = 64
    some = mask.blocks(Tq, Tk, (rows, width), device) != EMPTY
    some = some.reshape(-1, *some.shape[-2:]).any(0).cpu()  # of any sequence and head
    some = some.expand(-(-Tq // rows), -(-Tk // width)).int()
    first, last = some.argmax(-1), some.shape[-1] - some.flip(-1).argmax(-1)
    spans = zip(
        (first * width).tolist(), (last * width).clamp(max=Tk).tolist(), some.any(-1).tolist(), strict=True
    )
    return [(a, b) if any_ else (0, 0) for a, b, any_ in spans]


def _at_least(start: int, stop: int, least: int, size: int) -> tuple[int, int]:
    """The span, widened to `least` keys: to the left first, then to the right."""
    start = max(0, min(start, stop - least))
    return start, min(size, max(stop, start + least))
