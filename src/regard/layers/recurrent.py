"""Recurrence over time for sequences laid out (..., T, dim)."""

from __future__ import annotations

from torch import Tensor, nn

from regard.arguments import flag, integer, one_of
from regard.errors import OptionError, ShapeError

CELLS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Recurrence(nn.Module):
    """z_t = cell(x_t, z_(t−1)): T steps one after the other. Cells: rnn, gru, lstm."""

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
        out_dim = integer("dim", dim) if out_dim is None else integer("out_dim", out_dim)
        dim, bias, bidirectional = (
            integer("dim", dim),
            flag("bias", bias),
            flag("bidirectional", bidirectional),
        )
        if bidirectional and out_dim % 2:
            raise OptionError(
                f"a bidirectional layer halves its output, so out_dim must be even, got {out_dim}"
            )
        self.dim, self.cell, self.bidirectional = dim, cell, bidirectional
        hidden = out_dim // 2 if bidirectional else out_dim
        self.weight = CELLS[cell](dim, hidden, bias=bias, bidirectional=bidirectional, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[-1] != self.dim:
            raise ShapeError(
                f"this layer's input is (…, T, {self.dim}), got {tuple(x.shape)}; make the layer for {x.shape[-1]}"
            )
        if not x.numel():
            return x.new_zeros(*x.shape[:-1], self.weight.hidden_size * (2 if self.bidirectional else 1))
        out, _ = self.weight(x.reshape(-1, *x.shape[-2:]))
        return out.reshape(*x.shape[:-1], -1)
