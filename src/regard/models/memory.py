"""What an encoder hands to a decoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.position_masks import Padding
from regard.layers.recurrent import RecurrentState


class Memory(NamedTuple):
    """The encoder's states of a batch, y^e(1) … y^e(T^e), and how each sentence ended."""

    states: Tensor  # (batch, S, width)
    lengths: Tensor | None  # (batch,) real tokens of each; None: all S
    last: RecurrentState | None = None  # last state of every layer, when the encoder is a recurrence

    @property
    def mask(self) -> Padding | None:
        return None if self.lengths is None else Padding(self.lengths)

    @property
    def finite_mask(self) -> Padding | None:
        """The same where the states are a model's own; a sentence without words is then read as one of padding."""
        return None if self.lengths is None else finite_padding(self.lengths)

    def final(self) -> Tensor:
        """One vector (batch, width): the recurrence's last state, else the state at the last real token."""
        if self.last is not None:
            return self.last[-1][0]
        if not self.states.shape[1]:
            return self.states.sum(1)  # no tokens: zeros
        if self.lengths is None:
            return self.states[:, -1]
        at = (self.lengths - 1).clamp(min=0)
        return self.states[torch.arange(len(at), device=at.device), at]

    def mean(self) -> Tensor:
        """The mean of the real states, (batch, width)."""
        if self.lengths is None and self.states.shape[1]:
            return self.states.mean(1)
        if self.lengths is None:
            return self.states.sum(1)  # no tokens: zeros
        return (self.states * real(self.states, self.lengths)).sum(1) / self.lengths.clamp(min=1)[:, None].to(
            self.states.dtype
        )

    def reorder(self, rows: Tensor) -> Memory:
        """Keep these sentences, in this order."""
        lengths = None if self.lengths is None else self.lengths.index_select(0, rows)
        return Memory(self.states.index_select(0, rows), lengths, None)

    def join(self, other: Memory) -> Memory:
        """These sentences, then those of another; no wider than the longest of them."""
        lengths = torch.cat([m._lengths() for m in (self, other)])
        return Memory(stack_padded(self.states, other.states, int(lengths.max())), lengths, None)

    def _lengths(self) -> Tensor:
        whole = self.states.new_full((len(self.states),), self.states.shape[1], dtype=torch.long)
        return whole if self.lengths is None else self.lengths


def finite_padding(lengths: Tensor) -> Padding:
    """The mask of sentences whose states are all finite; one without words keeps its first place, lest it see nothing."""
    return Padding(lengths.clamp(min=1), finite=True)


def stack_padded(x: Tensor, y: Tensor, width: int) -> Tensor:
    """(a, S, ·) over (b, S', ·) → (a + b, width, ·), cut or filled with zeros behind."""
    fit = lambda x: torch.nn.functional.pad(x[:, :width], (0, 0, 0, max(0, width - x.shape[1])))  # noqa: E731
    return torch.cat([fit(x), fit(y)])


def real(x: Tensor, lengths: Tensor) -> Tensor:
    """1 at real tokens and 0 at padding, (batch, T, 1), to multiply with x."""
    return (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None].to(x.dtype)
