"""Recurrent layers: one layer over (..., T, dim), and a stack that takes and returns its states."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.arguments import flag, integer, one_of
from regard.errors import OptionError
from regard.layers.dropout import LockedDropout
from regard.layers.linear import check_input

CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
RecurrentState = list[tuple[Tensor, ...]]  # per layer: (h,), and for LSTMs (h, c), each (batch, width)
_packing: ContextVar[bool] = ContextVar("packing", default=True)


@contextmanager
def without_packing() -> Iterator[None]:
    """Inside, stacks of GRUs and plain RNNs run over padding too and set its outputs to zero.

    Packing needs the lengths on the CPU, which a CUDA graph cannot read. Every length must be at least 1.
    """
    token = _packing.set(False)
    try:
        yield
    finally:
        _packing.reset(token)


class Recurrence(nn.Module):
    """One recurrent layer, z_t = cell(x_t, z_(t−1)): T sequential steps. Cells: rnn, gru, lstm."""

    def __init__(
        self,
        dim: int,
        *,
        out_dim: int | None = None,
        cell: str = "rnn",
        bias: bool = True,
        bidirectional: bool = False,
    ) -> None:
        super().__init__()
        one_of("cell", cell, CELLS)
        dim = integer("dim", dim)
        out_dim = dim if out_dim is None else integer("out_dim", out_dim)
        bias, bidirectional = flag("bias", bias), flag("bidirectional", bidirectional)
        if bidirectional and out_dim % 2:
            raise OptionError(
                f"a bidirectional layer halves its output, so out_dim must be even, got {out_dim}"
            )
        self.dim, self.cell, self.bidirectional = dim, cell, bidirectional
        hidden = out_dim // 2 if bidirectional else out_dim
        self.weight = CELLS[cell](dim, hidden, bias=bias, bidirectional=bidirectional, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        check_input("input", x, self.dim)
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], self.weight.hidden_size * (2 if self.bidirectional else 1))
        out, _ = self.weight(x.reshape(-1, *x.shape[-2:]))  # (batch, T, dim) → (batch, T, out_dim)
        return out.reshape(*x.shape[:-1], -1)


class RecurrentStack(nn.Module):
    """Stacked recurrent layers: (batch, T, dim) → (batch, T, width) and the last state of each layer.

    A bidirectional layer concatenates both directions, each half as wide. `dropout` acts between layers, with
    one mask for all time steps; `dropout_weight` drops recurrent weights (DropConnect, Merity et al. 2018).
    """

    def __init__(
        self,
        dim: int,
        width: int,
        *,
        cell: str = "gru",
        layers: int = 1,
        bidirectional: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        dropout_weight: float = 0.0,
        last_width: int | None = None,
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise OptionError(f"cell must be one of {', '.join(CELLS)}, got {cell!r}")
        self.widths = [width] * (layers - 1) + [width if last_width is None else last_width]
        if bidirectional and any(w % 2 for w in self.widths):
            raise OptionError(
                "a bidirectional recurrence halves its width per direction, so width must be even, "
                f"got {width}"
            )
        self.dim, self.width, self.cell, self.bidirectional = dim, self.widths[-1], cell, bidirectional
        directions = 2 if bidirectional else 1
        sizes = zip([dim, *self.widths[:-1]], self.widths, strict=True)
        self.layers = nn.ModuleList(
            CELLS[cell](in_dim, out // directions, bias=bias, bidirectional=bidirectional, batch_first=True)
            for in_dim, out in sizes
        )
        for layer in self.layers:
            _init_weights(layer)  # type: ignore[arg-type]
        self.dropout, self.dropout_weight = LockedDropout(dropout), dropout_weight

    def forward(
        self, x: Tensor, state: RecurrentState | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """Run over all of x; return the outputs and the last state of each layer.

        With `lengths`, padding is not read, and the last state is that at the last token. A sequence of
        length 0 gives zeros and keeps its state.
        """
        if lengths is None or _packing.get() or self.cell == "lstm":  # an LSTM's cells are not returned
            lengths = None if lengths is None else lengths.cpu()
            rows = _nonempty_rows(x, lengths)
            if rows is not None:
                return self._forward_nonempty(rows, x, state, lengths)
            run_layer = self._run_layer
        else:
            run_layer = self._run_padded_layer
        last_states: RecurrentState = []
        for i, layer in enumerate(self.layers):
            x = self.dropout(x) if i else x
            x, last = run_layer(layer, x, None if state is None else state[i], lengths)  # type: ignore[arg-type]
            last_states.append(last)
        return x, last_states

    def _forward_nonempty(
        self, rows: Tensor, x: Tensor, state: RecurrentState | None, lengths: Tensor | None
    ) -> tuple[Tensor, RecurrentState]:
        """Run these sequences only; the others output zeros and keep their state."""
        initial = self.zero_state(x) if state is None else state
        if not len(rows):
            return x.new_zeros(*x.shape[:2], self.width), initial
        index = rows.to(x.device)
        row_state = None if state is None else reorder_state(state, index)
        out, last = self(x[index], row_state, None if lengths is None else lengths[rows])
        all_out = out.new_zeros(len(x), *out.shape[1:]).index_copy(0, index, out)
        return all_out, [
            tuple(h0.to(h.dtype).index_copy(0, index, h) for h0, h in zip(*layer, strict=True))
            for layer in zip(initial, last, strict=True)
        ]

    def zero_state(self, like: Tensor) -> RecurrentState:
        """The initial state, zeros, for the batch of `like` (batch, …)."""
        n = 2 if self.cell == "lstm" else 1
        return [tuple(like.new_zeros(len(like), w) for _ in range(n)) for w in self.widths]

    def _run_layer(
        self, layer: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...] | None, lengths: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        initial = None
        if state is not None:  # (batch, width) → (directions, batch, width per direction)
            directions = 2 if self.bidirectional else 1
            split = [
                h.to(x.dtype).unflatten(-1, (directions, -1)).transpose(0, 1).contiguous() for h in state
            ]
            initial = tuple(split) if self.cell == "lstm" else split[0]
        packed = (
            x if lengths is None else pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        )
        out, last = self._run_cell(layer, packed, initial)
        if lengths is not None:
            out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        last = last if isinstance(last, tuple) else (last,)
        return out, tuple(h.transpose(0, 1).flatten(1) for h in last)  # back to (batch, width)

    def _run_padded_layer(
        self, layer: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...] | None, lengths: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """`_run_layer` without packing: one call per direction, the second over reversed sequences."""
        run = torch._VF.gru if self.cell == "gru" else torch._VF.rnn_tanh  # type: ignore[attr-defined]
        weights, directions = self._weights(layer), 2 if self.bidirectional else 1
        per_direction = len(weights) // directions
        width = layer.hidden_size
        initial = x.new_zeros(len(x), width * directions) if state is None else state[0].to(x.dtype)
        last_position = (lengths - 1).view(-1, 1, 1).expand(-1, 1, width)
        outs, lasts = [], []
        for i in range(directions):
            own = weights[i * per_direction : (i + 1) * per_direction]
            h = initial[:, i * width : (i + 1) * width][None].contiguous()
            with warnings.catch_warnings():  # weights of one direction are not one block of memory
                warnings.filterwarnings("ignore", message="RNN module weights")
                ordered = _reverse(x, lengths) if i else x
                out, _ = run(ordered, h, own, layer.bias, 1, 0.0, self.training, False, True)
            lasts.append(out.gather(1, last_position)[:, 0])
            outs.append(_reverse(out, lengths) if i else out)
        out = torch.cat(outs, -1)
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        return out.masked_fill(padding[..., None], 0.0), (torch.cat(lasts, -1),)

    def _run_cell(self, layer: nn.RNNBase, x, initial):  # noqa: ANN001, ANN202 - torch's own types are loose here
        """Run torch's layer, in training with dropout on its recurrent weights."""
        if not self.training or self.dropout_weight == 0:
            return layer(x, initial)
        # Not torch.func.functional_call: it leaves its tensors in a recurrent layer.
        weights = layer._flat_weights
        layer._flat_weights = self._weights(layer)
        try:
            return layer(x, initial)
        finally:
            layer._flat_weights = weights

    def _weights(self, layer: nn.RNNBase) -> list[Any]:
        """The layer's weights, in training with dropout on the recurrent ones."""
        rate = self.dropout_weight if self.training else 0.0
        return [
            nn.functional.dropout(w, rate) if rate and name.startswith("weight_hh") else w  # type: ignore[arg-type]
            for name, w in zip(layer._flat_weights_names, layer._flat_weights, strict=True)
        ]

    def extra_repr(self) -> str:
        return f"{self.dim} → {self.widths}, {self.cell}{', bidirectional' if self.bidirectional else ''}"


def _reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first `length` positions of each sequence, (batch, T, width)."""
    t = torch.arange(x.shape[1], device=x.device)
    index = torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)
    return x.gather(1, index[..., None].expand_as(x))


def _nonempty_rows(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Indices of the sequences with tokens; None if all have some. torch's layers refuse empty ones."""
    if torch.compiler.is_compiling():
        return None
    if not len(x) or not x.shape[1]:
        return torch.empty(0, dtype=torch.long)
    return None if lengths is None or bool((lengths > 0).all()) else lengths.nonzero()[:, 0]


@torch.no_grad()
def _init_weights(layer: nn.RNNBase) -> None:
    """Initialize per gate: Glorot for input weights, orthogonal for recurrent ones, LSTM forget bias 1.

    With torch's smaller default weights, a stack of three LSTMs predicts unigram frequencies for epochs.
    """
    gates = {"RNN_TANH": 1, "GRU": 3, "LSTM": 4}[layer.mode]
    for name, p in layer.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(p)
        for gate in p.chunk(gates) if p.ndim == 2 else ():
            (nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_uniform_)(gate)
        if layer.mode == "LSTM" and name.startswith("bias_ih"):
            nn.init.ones_(p.chunk(gates)[1])  # the forget gate (Gers et al. 2000)


def reorder_state(state: RecurrentState, rows: Tensor) -> RecurrentState:
    """Select these batch items, in this order."""
    return [tuple(h.index_select(0, rows) for h in layer) for layer in state]


def concat_states(state: RecurrentState, other: RecurrentState) -> RecurrentState:
    """Concatenate two states along the batch."""
    return [tuple(map(torch.cat, zip(a, b, strict=True))) for a, b in zip(state, other, strict=True)]
