"""Recurrent layers on top of each other, with their states in the open: what encoders, decoders and language models are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.errors import OptionError
from regard.layers.dropout import Locked
from regard.layers.recurrent import CELLS

State = list[tuple[Tensor, ...]]  # per layer: (h,), and for LSTMs (h, c), each (batch, width)


class RecurrentStack(nn.Module):
    """z_t = cell(x_t, z_(t−1)) in `layers` layers. (batch, T, dim) → (batch, T, width) and the last state of each layer.

    A bidirectional layer puts both directions side by side, each half as wide. `dropout` stands between layers and
    keeps one mask over time; `dropout_weight` drops recurrent weights (DropConnect, Merity et al. 2018).
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
                f"a bidirectional recurrence halves its width for each direction, so width must be even, got {width}"
            )
        self.dim, self.width, self.cell, self.bidirectional = dim, self.widths[-1], cell, bidirectional
        half = 2 if bidirectional else 1
        sizes = zip([dim, *self.widths[:-1]], self.widths, strict=True)
        self.layers = nn.ModuleList(
            CELLS[cell](a, b // half, bias=bias, bidirectional=bidirectional, batch_first=True)
            for a, b in sizes
        )
        for layer in self.layers:
            _begin(layer)  # type: ignore[arg-type]
        self.dropout, self.dropout_weight = Locked(dropout), dropout_weight

    def forward(
        self, x: Tensor, state: State | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run over all of x. With `lengths`, padding is never read and the last state is that of the last real token.

        A sequence without tokens gives zeros and leaves the state as it was.
        """
        lengths = None if lengths is None else lengths.cpu()
        rows = _rows_with_tokens(x, lengths)
        if rows is not None:
            return self._of_rows(rows, x, state, lengths)
        found: State = []
        for i, layer in enumerate(self.layers):
            x = self.dropout(x) if i else x
            x, last = self._run(layer, x, None if state is None else state[i], lengths)  # type: ignore[arg-type]
            found.append(last)
        return x, found

    def _of_rows(
        self, rows: Tensor, x: Tensor, state: State | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        """Run over these sequences only; the others get zeros as output and keep their state."""
        before = self.zeros(x) if state is None else state
        if not len(rows):
            return x.new_zeros(*x.shape[:2], self.width), before
        at = rows.to(x.device)
        out, last = self(
            x[at], None if state is None else reorder(state, at), None if lengths is None else lengths[rows]
        )
        whole = out.new_zeros(len(x), *out.shape[1:]).index_copy(0, at, out)
        pairs = zip(before, last, strict=True)
        return whole, [
            tuple(b.to(h.dtype).index_copy(0, at, h) for b, h in zip(*pair, strict=True)) for pair in pairs
        ]

    def zeros(self, like: Tensor) -> State:
        """The state before anything was read, for the batch of `like` (batch, …)."""
        n = 2 if self.cell == "lstm" else 1
        return [tuple(like.new_zeros(len(like), w) for _ in range(n)) for w in self.widths]

    def _run(
        self, layer: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...] | None, lengths: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        given = None
        if state is not None:  # (batch, width) → (directions, batch, width of one)
            split = [
                h.to(x.dtype).unflatten(-1, (2 if self.bidirectional else 1, -1)).transpose(0, 1).contiguous()
                for h in state
            ]
            given = tuple(split) if self.cell == "lstm" else split[0]
        packed = (
            x if lengths is None else pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        )
        out, last = self._weighed(layer, packed, given)
        if lengths is not None:
            out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        last = last if isinstance(last, tuple) else (last,)
        return out, tuple(h.transpose(0, 1).flatten(1) for h in last)

    def _weighed(self, layer: nn.RNNBase, x, given):  # noqa: ANN001, ANN202 - torch's own types are loose here
        if not self.training or self.dropout_weight == 0:
            return layer(x, given)
        # torch.func.functional_call leaves its tensors behind in a recurrence, so the list it computes with is changed instead.
        kept = layer._flat_weights
        pairs = zip(layer._flat_weights_names, kept, strict=True)

        def drop(name: str, w: Any) -> Any:
            return nn.functional.dropout(w, self.dropout_weight) if name.startswith("weight_hh") else w

        layer._flat_weights = [drop(name, w) for name, w in pairs]
        try:
            return layer(x, given)
        finally:
            layer._flat_weights = kept

    def extra_repr(self) -> str:
        return f"{self.dim} → {self.widths}, {self.cell}{', bidirectional' if self.bidirectional else ''}"


def _rows_with_tokens(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """The sequences that have tokens, or None if all have. torch's recurrences take no others."""
    if torch.compiler.is_compiling():
        return None
    if not len(x) or not x.shape[1]:
        return torch.empty(0, dtype=torch.long)
    return None if lengths is None or bool((lengths > 0).all()) else lengths.nonzero()[:, 0]


@torch.no_grad()
def _begin(layer: nn.RNNBase) -> None:
    """Weights that let signals through: gate by gate, Glorot's for the input and orthogonal ones for the recurrence; an LSTM
    starts by remembering. From torch's own, smaller weights a stack of three LSTMs stays at word frequencies for epochs.
    """
    gates = {"RNN_TANH": 1, "GRU": 3, "LSTM": 4}[layer.mode]
    for name, p in layer.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(p)
        for gate in p.chunk(gates) if p.ndim == 2 else ():
            (nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_uniform_)(gate)
        if layer.mode == "LSTM" and name.startswith("bias_ih"):
            nn.init.ones_(p.chunk(gates)[1])  # the forget gate (Gers et al. 2000)


def reorder(state: State, rows: Tensor) -> State:
    """Keep these batch items, in this order."""
    return [tuple(h.index_select(0, rows) for h in layer) for layer in state]


def join(state: State, other: State) -> State:
    """These batch items, then those."""
    return [tuple(map(torch.cat, zip(a, b, strict=True))) for a, b in zip(state, other, strict=True)]
