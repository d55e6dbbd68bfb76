"""Compute the attention matrix of a recorded call tile by tile, so that only one tile is in memory.

Each tile is one matmul of a block of queries with the keys they may see. For dot-product energies with
softmax; plain torch, on any device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.bias import Bias
from regard.attention.call import Call
from regard.attention.grid import Grid, Index, take, take_broadcast
from regard.attention.kernel_inputs import subtract_row_max
from regard.attention.mask import EMPTY, And, Mask
from regard.attention.precision import HALF, compute_dtype, no_autocast, upcast
from regard.attention.selection import Selection

CPU_TILE = 1 << 18  # pairs of a tile: 1 MiB in float32, which fits the cache of a core
GPU_TILE = 1 << 26  # 256 MiB in float32
ROWS = 128  # queries of a tile; more if there are few keys
BOUND = 60.0  # exp(60) times any number of keys is finite in float32, and exp(−60) is still a normal number


def can_tile(selection: Selection) -> bool:
    """Whether the call can be computed in tiles."""
    call = selection.call
    return (
        call.energy.form == "dot"
        and not call.per_head_energy
        and call.is_softmax
        and call.edited is None
        and 0 not in (*selection.shape, call.key.shape[-1])
    )


@dataclass
class ScoreTile:
    """Scores before the mask, (sequences, heads, queries, keys), of a block of the attention matrix.

    Call only one method per tile: it may overwrite the scores.
    """

    scores: Tensor
    modifiers: _ScoreModifiers
    gate: Tensor | None
    temperature: float
    bounded: bool  # no |score| exceeds BOUND, so exp needs no subtraction of the row maximum
    may_be_empty: bool  # a row may have no visible key
    sequences: slice
    heads: slice
    rows: slice  # among the selected queries
    columns: slice  # keys

    def part_of(self, x: Tensor, columns: slice | None = None, all_rows: bool = False) -> Tensor:
        """The view of x, (sequences, heads, queries, ·), that this tile covers; `all_rows`: all queries."""
        x = x[self.sequences, self.heads, slice(None) if all_rows else self.rows]
        return x if columns is None else x[..., columns]

    def weights(self, gated: bool = True) -> Tensor:
        x, factor = self.factored_weights(gated)
        return x if factor is None else x.mul_(factor)

    def factored_weights(self, gated: bool = True) -> tuple[Tensor, Tensor | None]:
        """The weights as x · factor: x (sequences, heads, queries, keys), factor one per row (None: 1)."""
        if self.bounded:
            x = self._masked_exp(self._over_temperature())
            # The clamp keeps a row without visible keys at 0.
            factor = x.sum(-1, keepdim=True).clamp_(min=torch.finfo(x.dtype).tiny).reciprocal_()
        else:
            self.modifiers.apply_mask(self.scores, self.sequences, self.heads, -math.inf)
            empty = self.scores.amax(-1, keepdim=True) == -math.inf if self.may_be_empty else None
            x, factor = torch.softmax(self._shifted() if self.temperature != 1.0 else self.scores, -1), None
            x = x if empty is None else x.masked_fill_(empty, 0.0)
        return (x.mul_(self.gate) if self.gate is not None and gated else x), factor

    def column_sums(self) -> Tensor:
        """Σ over queries, (sequences, heads, keys)."""
        x, factor = self.factored_weights()
        merged = x.view(-1, *x.shape[-2:])  # (sequences · heads, queries, keys)
        factor = (
            merged.new_ones(1, 1, 1).expand(*merged.shape[:2], 1)
            if factor is None
            else factor.view(*merged.shape[:2], 1)
        )
        return torch.bmm(factor.mT, merged).view(*x.shape[:2], -1)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest weights of each row and their keys."""
        x, factor = self.factored_weights()
        values, keys = _topk(x, k)
        return (values if factor is None else values * factor), keys + self.columns.start

    def entropy(self) -> Tensor:
        """log Z − Σ exp(x)·x / Z of each row, x the scores (minus the row maximum if unbounded).

        This takes one exp per pair and no log.
        """
        if self.gate is not None:
            return torch.special.entr(self.weights()).sum(-1)
        if self.bounded:
            x = self._over_temperature()
            e, empty = self._masked_exp(x.clone()), None
        else:
            self.modifiers.apply_mask(self.scores, self.sequences, self.heads, -math.inf)
            empty = self.scores.amax(-1) == -math.inf if self.may_be_empty else None
            x = self._shifted().clamp_(min=-1e4)  # exp(−1e4) is 0, and 0 · −∞ would be NaN
            e = x.exp()
        Z = e.sum(-1)
        entropy = (e.mul_(x).sum(-1) / -Z).add_(Z.log())
        empty = Z == 0 if self.bounded and self.may_be_empty else empty
        return entropy if empty is None else entropy.masked_fill_(empty, 0.0)

    def _over_temperature(self) -> Tensor:
        return self.scores.div_(self.temperature) if self.temperature != 1.0 else self.scores

    def _masked_exp(self, x: Tensor) -> Tensor:
        """exp, then 0 where masked: on a CPU exp(−∞) takes ten times as long as exp of a finite number."""
        return self.modifiers.apply_mask(x.exp_(), self.sequences, self.heads, 0.0)

    def _shifted(self) -> Tensor:
        """(scores − row maximum) / temperature."""
        top = self.scores.amax(-1, keepdim=True)
        top = top.masked_fill_(top == -math.inf, 0.0) if self.may_be_empty else top
        shifted = self.scores.sub_(top)
        return shifted.div_(self.temperature) if self.temperature != 1.0 else shifted


def _topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """topk of each row. Long rows are searched only in the k blocks with the largest maxima."""
    size = math.isqrt(x.shape[-1] // k)
    if size < 4:
        return x.topk(k, -1)
    end = x.shape[-1] // size * size  # the end of the last full block
    blocks = x[..., :end].unflatten(-1, (-1, size))  # (..., blocks, size)
    best = blocks.amax(-1).topk(k, -1).indices  # (..., k)
    candidates = blocks.gather(-2, best[..., None].expand(*best.shape, size)).flatten(-2)  # (..., k · size)
    keys = (best[..., None] * size + torch.arange(size, device=x.device)).flatten(-2)
    if end < x.shape[-1]:
        rest = torch.arange(end, x.shape[-1], device=x.device)
        candidates = torch.cat([candidates, x[..., end:]], -1)
        keys = torch.cat([keys, rest.expand(*keys.shape[:-1], -1)], -1)
    values, positions = candidates.topk(k, -1)
    return values, keys.gather(-1, positions)


def for_each_tile(selection: Selection, visit: Callable[[ScoreTile], None], min_keys: int = 1) -> None:
    """Call `visit` with every tile of the selected rows.

    A tile leaves out keys that the mask hides from all its queries, but has at least `min_keys` keys. Rows
    without a visible key get no tile: their weights are 0.
    """
    call = selection.call
    with no_autocast(call.query):
        q, k, scale = _operands(selection)
        bounds = _score_bounds(call, q, k, scale)
        q = q * scale if q.dtype not in HALF else q
        N, Hk, G, Tq, _ = q.shape  # sequences, key heads, query heads per key head, queries
        tile = CPU_TILE if q.device.type == "cpu" else GPU_TILE
        rows = max(1, min(Tq, max(-(-ROWS // G), tile // (N * Hk * G * call.Tk))))
        largest = 0 if q.dtype in HALF else min(N * Hk * G * rows * call.Tk, max(tile, G * rows * call.Tk))
        buffer = torch.empty(largest, dtype=compute_dtype(q.dtype), device=q.device)
        modifiers = _ScoreModifiers(selection)
        spans = _visible_spans(selection, rows, min_keys)
        for (start, stop), (low, high) in zip(_ranges(Tq, rows), spans, strict=True):
            if low >= high:
                continue
            r, columns = slice(start, stop), slice(low, high)
            n_rows, n_keys = stop - start, high - low
            size = G * n_rows * n_keys
            heads, sequences = max(1, min(Hk, tile // size)), max(1, min(N, tile // (size * Hk)))
            modifiers.move(r, columns)
            for n0, n1 in _ranges(N, sequences):
                for h0, h1 in _ranges(Hk, heads):
                    n, h = slice(n0, n1), slice(h0 * G, h1 * G)
                    a = q[n, h0:h1, :, r].reshape((n1 - n0) * (h1 - h0), G * n_rows, -1)
                    b = k[n, h0:h1, columns].reshape((n1 - n0) * (h1 - h0), n_keys, -1)
                    scores = _dot(a, b, scale, buffer).view(n1 - n0, (h1 - h0) * G, n_rows, n_keys)
                    scores, gate = modifiers.apply(scores, n, h), modifiers.gate(n, h, scores)
                    bounded = all(x <= BOUND for row in bounds[n0:n1] for x in row[h0:h1])
                    visit(
                        ScoreTile(
                            scores, modifiers, gate, call.temperature, bounded, modifiers.may_be_empty,
                            sequences=n, heads=h, rows=r, columns=columns,
                        )
                    )  # fmt: skip


def _score_bounds(call: Call, q: Tensor, k: Tensor, scale: float) -> list[list[float]]:
    """Upper bounds of |score| / temperature per sequence and key head, by Cauchy-Schwarz.

    Infinite on a GPU: copying them to the host would synchronize, and softmax is a fused kernel there anyway.
    """
    if call.bias is not None or q.device.type != "cpu":
        return [[math.inf] * q.shape[1]] * q.shape[0]
    if call.softcap is not None:
        return [[call.softcap / call.temperature] * q.shape[1]] * q.shape[0]
    # (sequences, key heads).
    q_norm, k_norm = (
        torch.linalg.vector_norm(x, dim=-1, dtype=compute_dtype(x.dtype)).flatten(2).amax(-1) for x in (q, k)
    )
    return (q_norm * k_norm * abs(scale / call.temperature)).tolist()


def _operands(selection: Selection) -> tuple[Tensor, Tensor, float]:
    """Queries (sequences, key heads, group, queries, dim), keys (sequences, key heads, keys, dim), scale."""
    call = selection.call
    query, key = call.query, call.key
    for i, index in enumerate(reversed(selection.batch)):
        query, key = take(query, -4 - i, index), take_broadcast(key, -4 - i, index)
    if selection.head is not None:
        head = selection.head
        if isinstance(head, slice):
            head = torch.arange(call.heads, device="cpu")[head]
        group = call.heads // key.shape[-3]
        query, key = take(query, -3, _as_slice(head)), take(key, -3, _as_slice(head // group))
    query = take(query, -2, selection.query)
    with call.autocast_context():
        form = call.energy.as_dot(query, key)
    query, key = form.query, form.key
    leading = query.shape[:-3]
    key = key.expand(*leading, *key.shape[-3:]) if key.shape[:-3] != leading else key
    query, key = query.reshape(-1, *query.shape[-3:]), key.reshape(-1, *key.shape[-3:])
    if query.dtype in HALF and not _has_mixed_precision_bmm(query):
        query, key = upcast(query), upcast(key)
    return query.unflatten(1, (key.shape[1], -1)), key.contiguous(), form.scale


def _as_slice(index: Tensor) -> Index:
    """A slice for a single index: slicing gives a view."""
    return slice(int(index), int(index) + 1) if index.numel() == 1 else index


def _has_mixed_precision_bmm(x: Tensor) -> bool:
    """Whether bmm takes half-precision inputs and returns float32: exact products at half-precision speed."""
    return x.device.type == "cuda"


def _dot(a: Tensor, b: Tensor, scale: float, buffer: Tensor) -> Tensor:
    """a bᵀ, (batch, n, dim) and (batch, m, dim) → (batch, n, m), in at least float32.

    Half precision is scaled here. The result is written to `buffer`: on a CPU, allocating a tensor per
    tile would cost as much as its exp, since the system clears new pages.
    """
    if a.dtype in HALF:
        return torch.bmm(a, b.mT, out_dtype=torch.float32).mul_(scale)  # type: ignore[call-overload]
    shape = len(a), a.shape[1], b.shape[1]
    return torch.bmm(a, b.mT, out=buffer[: math.prod(shape)].view(shape))


def _ranges(n: int, step: int) -> list[tuple[int, int]]:
    return [(i, min(i + step, n)) for i in range(0, n, step)]


# ------------------------------------------------------------------------------ mask, bias and gate of a tile
class _ScoreModifiers:
    """Mask, bias, soft cap and gate for the rows and keys of the current tile."""

    def __init__(self, selection: Selection) -> None:
        call = selection.call
        self.selection, self.call, self.leading = selection, call, selection.shape[:-3]
        self.may_be_empty = call.bias_may_mask or (
            call.mask is not None and not call.mask.covers(call.Tq, call.Tk)
        )
        self.hidden = self.bias = self.factor = self.band = None
        self.edges: dict[tuple[int, ...], Tensor] = {}

    def move(self, rows: slice, columns: slice) -> None:
        """Compute mask, bias and gate for the next rows (among the selected queries) and keys."""
        selection, call = self.selection, self.call
        index = _query_index(selection, rows)
        self.band = _band(call.mask, call.Tq, call.Tk) if isinstance(index, slice) else None
        self.first_row, self.columns = index.start if isinstance(index, slice) else 0, columns
        has_mask = call.mask is not None and self.band is None
        if not has_mask and call.bias is None and call.gate is None:
            return
        grid = call.grid(queries=index, keys=columns, head=selection.head, batch=selection.batch)
        reads_query = call.bias is not None or isinstance(call.gate, Bias)
        query = _query_vectors(selection, index) if reads_query else call.query
        allowed = call.mask.allowed(grid) if has_mask and call.mask is not None else None
        bias = None if call.bias is None else call.bias.values(grid, query)
        if bias is not None and call.bias_may_mask:
            allowed_by_bias = bias != -math.inf
            allowed = allowed_by_bias if allowed is None else allowed & allowed_by_bias
            bias = subtract_row_max(bias, self._seen(allowed, grid)) if call.softcap is None else bias
        self.hidden = None if allowed is None else self._merge_leading(~allowed)
        self.bias = None if bias is None else self._merge_leading(bias)
        if call.gate is not None:
            gate = call.gate
            factor = gate.allowed(grid) if isinstance(gate, Mask) else gate.values(grid, query)
            seen = self._seen(allowed, grid) if isinstance(gate, Bias) else None
            self.factor = self._merge_leading(factor if seen is None else torch.where(seen, factor, 0.0))

    def _seen(self, allowed: Tensor | None, grid: Grid) -> Tensor | None:
        """The allowed pairs as a tensor; None: all. A band is not in `allowed`."""
        if self.band is None or self.call.mask is None:
            return allowed
        band = self.call.mask.allowed(grid)
        return band if allowed is None else band & allowed

    def _merge_leading(self, x: Tensor) -> Tensor:
        """(*leading, heads, n, m), axes 1 or missing → (sequences or 1, heads or 1, n or 1, m or 1)."""
        x = x.reshape((1,) * (len(self.leading) + 3 - x.ndim) + tuple(x.shape))
        if any(n != 1 for n in x.shape[:-3]):
            x = x.expand(*self.leading, *x.shape[-3:])
        return x.reshape(-1, *x.shape[-3:])

    def _slice(self, x: Tensor, sequences: slice, heads: slice) -> Tensor:
        x = x[sequences] if len(x) > 1 else x
        return x[:, heads] if x.shape[1] > 1 else x

    def apply(self, scores: Tensor, sequences: slice, heads: slice) -> Tensor:
        """Add the bias and apply the soft cap, in place."""
        if self.bias is not None:
            scores.add_(self._slice(self.bias, sequences, heads))
        if self.call.softcap is not None:
            scores.div_(self.call.softcap).tanh_().mul_(self.call.softcap)
        return scores

    def apply_mask(self, x: Tensor, sequences: slice, heads: slice, value: float) -> Tensor:
        """Set x to `value`, 0 or −∞, where the mask hides a key, in place."""
        if self.band is not None:
            self._mask_outside_band(x, *self.band, value)
        if self.hidden is not None:
            x.masked_fill_(self._slice(self.hidden, sequences, heads), value)
        return x

    def _mask_outside_band(self, x: Tensor, low: int, high: int, value: float) -> None:
        """Mask the keys at both edges of the band; those between are visible to all queries of the tile."""
        start, stop = self.first_row, self.first_row + x.shape[-2]
        first, last = self.columns.start, self.columns.stop
        left = (first, min(last, stop - 1 + low))  # keys before the first that the last query sees
        right = (max(first, start + high + 1), last)  # keys after the last that the first query sees
        if value == 0:
            if left[0] < left[1]:
                x.triu_(low + start - first)
            if right[0] < right[1]:
                x.tril_(high + start - first)
            return
        if left[1] > right[0]:
            left, right = (first, last), (last, last)  # a narrow band: no key is visible to all queries
        for a, b in (left, right):
            if a < b:
                hidden = self._edge(a - start, b - start, stop - start, low, high)
                x[..., a - first : b - first].masked_fill_(hidden, value)

    def _edge(self, a: int, b: int, rows: int, low: int, high: int) -> Tensor:
        """True where a key is hidden, (rows, b − a); a and b are relative to the first query.

        Cached: most tiles share it.
        """
        if (a, b, rows) not in self.edges:
            device = self.call.query.device
            distance = torch.arange(a, b, device=device) - torch.arange(rows, device=device)[:, None]
            if len(self.edges) > 8:
                self.edges.clear()
            self.edges[a, b, rows] = (distance < low) | (distance > high)
        return self.edges[a, b, rows]

    def gate(self, sequences: slice, heads: slice, scores: Tensor) -> Tensor | None:
        return None if self.factor is None else self._slice(self.factor, sequences, heads).to(scores.dtype)


def _query_vectors(selection: Selection, index: Index) -> Tensor:
    """The query vectors of some rows, for biases that read them."""
    query = take(take(selection.call.query, -3, selection.head), -2, index)
    for i, batch_index in enumerate(reversed(selection.batch)):
        query = take(query, -4 - i, batch_index)
    return query


def _query_index(selection: Selection, rows: slice) -> Index:
    """Rows of the selection as query indices of the call: a slice where they are contiguous."""
    if selection.query is None:
        return rows
    if isinstance(selection.query, slice):
        start, _, step = selection.query.indices(selection.call.Tq)
        if step == 1:
            return slice(start + rows.start, start + rows.stop)
    return _as_slice(selection.query_indices()[rows])


def _band(mask: Mask | None, Tq: int, Tk: int) -> tuple[int, int] | None:
    """(low, high) if the mask allows exactly low ≤ key − query ≤ high."""
    if type(mask) is And:
        a, b = _band(mask.a, Tq, Tk), _band(mask.b, Tq, Tk)
        return None if a is None or b is None else (max(a[0], b[0]), min(a[1], b[1]))
    return None if mask is None else mask.static_band(Tq, Tk)


def _visible_spans(selection: Selection, rows: int, min_keys: int) -> list[tuple[int, int]]:
    """For each step of `rows` queries, the span (first, last + 1) of keys that any of them may see."""
    call, Tk = selection.call, selection.call.Tk
    steps = [_query_index(selection, slice(a, b)) for a, b in _ranges(selection.shape[-2], rows)]
    if call.mask is None:
        return [(0, Tk)] * len(steps)
    band = _band(call.mask, call.Tq, Tk)
    if band is not None:
        low, high = band
        spans = [
            (max(0, s.start + low), min(Tk, s.stop + high)) if isinstance(s, slice) else (0, Tk)
            for s in steps
        ]  # fmt: skip
    elif selection.query is None and len(steps) > 1:
        spans = _spans_from_blocks(call.mask, call.Tq, Tk, rows, call.query.device)
    else:
        spans = [(0, Tk)] * len(steps)
    return [(0, 0) if a >= b else _widen(a, b, min_keys, Tk) for a, b in spans]


def _spans_from_blocks(
    mask: Mask, Tq: int, Tk: int, rows: int, device: torch.device
) -> list[tuple[int, int]]:
    width = 64
    some = mask.blocks(Tq, Tk, (rows, width), device) != EMPTY
    some = some.reshape(-1, *some.shape[-2:]).any(0).cpu()  # over sequences and heads
    some = some.expand(-(-Tq // rows), -(-Tk // width)).int()  # (blocks of queries, blocks of keys)
    first, last = some.argmax(-1), some.shape[-1] - some.flip(-1).argmax(-1)
    starts, stops = (first * width).tolist(), (last * width).clamp(max=Tk).tolist()
    visible = some.any(-1).tolist()
    return [(a, b) if any_ else (0, 0) for a, b, any_ in zip(starts, stops, visible, strict=True)]


def _widen(start: int, stop: int, min_keys: int, size: int) -> tuple[int, int]:
    """The span widened to `min_keys` keys: to the left first, then to the right."""
    start = max(0, min(start, stop - min_keys))
    return start, min(size, max(stop, start + min_keys))
