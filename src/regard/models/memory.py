"""The state of a search: encoder output (`Memory`) and decoder state between steps (`DecoderState`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.position_masks import Padding
from regard.layers.kv_cache import Cache
from regard.layers.recurrent import RecurrentState, concat_states, reorder_state


class Memory(NamedTuple):
    """Encoder output of a batch: the states y^e(1) … y^e(T^e) and the lengths."""

    states: Tensor  # (batch, S, width)
    lengths: Tensor | None  # (batch,) tokens without padding; None: all S
    last: RecurrentState | None = None  # last state of every layer of a recurrent encoder

    @property
    def mask(self) -> Padding | None:
        return None if self.lengths is None else Padding(self.lengths)

    @property
    def finite_mask(self) -> Padding | None:
        """The mask for states that are known to be finite, as those of our encoders; see `finite_padding`."""
        return None if self.lengths is None else finite_padding(self.lengths)

    def final(self) -> Tensor:
        """The last state of a recurrence, else the state at the last token: (batch, width)."""
        if self.last is not None:
            return self.last[-1][0]
        if not self.states.shape[1]:
            return self.states.sum(1)  # no tokens: zeros
        if self.lengths is None:
            return self.states[:, -1]
        last = (self.lengths - 1).clamp(min=0)
        return self.states[torch.arange(len(last), device=last.device), last]

    def mean(self) -> Tensor:
        """The mean of the states without padding: (batch, width)."""
        if self.lengths is None and self.states.shape[1]:
            return self.states.mean(1)
        if self.lengths is None:
            return self.states.sum(1)  # no tokens: zeros
        total = (self.states * token_mask(self.states, self.lengths)).sum(1)
        return total / self.lengths.clamp(min=1)[:, None].to(total.dtype)

    def reorder(self, rows: Tensor) -> Memory:
        """Select sentences by their rows."""
        lengths = None if self.lengths is None else self.lengths.index_select(0, rows)
        return Memory(self.states.index_select(0, rows), lengths, None)

    def join(self, other: Memory) -> Memory:
        """Concatenate with the sentences of another memory, padded to the longest sentence."""
        lengths = torch.cat([m._lengths() for m in (self, other)])
        return Memory(stack_padded(self.states, other.states, int(lengths.max())), lengths, None)

    def _lengths(self) -> Tensor:
        if self.lengths is not None:
            return self.lengths
        return self.states.new_full((len(self.states),), self.states.shape[1], dtype=torch.long)


@dataclass
class DecoderState:
    """Decoder state between steps: encoder output, recurrent states, key/value caches.

    A decoder uses the fields that it needs.
    """

    memory: Memory | None = None
    hidden: RecurrentState = field(default_factory=list)  # of every recurrent layer
    context: Tensor | None = None  # y^a(t−1), for input feeding
    projected: Tensor | None = None  # U h of every source token, for Bahdanau's attention
    caches: list[tuple[Cache, Cache]] = field(default_factory=list)  # per layer: self- and cross-attention
    length: int = 0  # tokens in the caches

    def reorder(self, rows: Tensor) -> DecoderState:
        """Select sentences, as a beam search does after each step."""
        for pair in self.caches:
            for cache in pair:
                cache.reorder(rows)
        pick = lambda x: None if x is None else x.index_select(0, rows)  # noqa: E731
        memory = None if self.memory is None else self.memory.reorder(rows)
        return DecoderState(
            memory,
            reorder_state(self.hidden, rows),
            pick(self.context),
            pick(self.projected),
            self.caches,
            self.length,
        )

    def join(self, other: DecoderState) -> DecoderState:
        """Concatenate with the sentences of another state; the two may be at different steps.

        Only recurrent states can be joined: all rows of a key/value cache share one length.
        """
        assert not self.caches and not other.caches
        if self.memory is None or other.memory is None:
            return DecoderState(None, concat_states(self.hidden, other.hidden))
        projected = None
        memory = self.memory.join(other.memory)
        if self.projected is not None and other.projected is not None:
            projected = stack_padded(self.projected, other.projected, memory.states.shape[1])
        context = None
        if self.context is not None and other.context is not None:
            context = torch.cat([self.context, other.context])
        return DecoderState(memory, concat_states(self.hidden, other.hidden), context, projected)


def finite_padding(lengths: Tensor) -> Padding:
    """The padding mask of finite states; of an empty sentence one position stays visible: no row is empty."""
    return Padding(lengths.clamp(min=1), finite=True)


def stack_padded(x: Tensor, y: Tensor, width: int) -> Tensor:
    """Concatenate (a, S, ·) and (b, S', ·) to (a + b, width, ·), truncated or padded with zeros."""
    fit = lambda x: torch.nn.functional.pad(x[:, :width], (0, 0, 0, max(0, width - x.shape[1])))  # noqa: E731
    return torch.cat([fit(x), fit(y)])


def token_mask(x: Tensor, lengths: Tensor) -> Tensor:
    """1 at tokens and 0 at padding, (batch, T, 1), in the dtype of x."""
    return (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[..., None].to(x.dtype)
