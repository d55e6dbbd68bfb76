"""Decoders: features of the next word from the words so far and the memory.

All offer the same: forward over a whole target at once (teacher forcing), and start, step, reorder for a search. Without a
memory each is the body of a language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.attention.position_masks import Causal
from regard.errors import ShapeError
from regard.layers.cache import Cache
from regard.layers.dropout import Dropout
from regard.layers.recurrent import RecurrentStack, RecurrentState, concat_states, reorder_state
from regard.models.cross_attention import AdditiveCrossAttention
from regard.models.memory import Memory, stack_padded
from regard.models.transformer_layer import TransformerLayer

CAUSAL = Causal()


@dataclass
class DecoderState:
    """What a decoder keeps between steps; each uses what it needs."""

    memory: Memory | None = None
    hidden: RecurrentState = field(default_factory=list)  # recurrent states
    context: Tensor | None = None  # y^a(t−1), for input feeding
    projected: Tensor | None = None  # U h of every source word, for Bahdanau
    caches: list[tuple[Cache, Cache]] = field(default_factory=list)
    length: int = 0

    def reorder(self, rows: Tensor) -> DecoderState:
        """Keep these sentences, in this order: what a beam search does after each step."""
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
        """These sentences, then those of another: a recurrent state knows no length, so they may have come differently far.

        Not for caches of keys and values: one length and one position serve all rows of such a batch.
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


class TransformerDecoder(nn.Module):
    """Masked self-attention, attention to the memory, feed-forward, layer after layer."""

    joins = False  # all rows of its caches have one length, so sentences start together

    def __init__(
        self,
        layers: Sequence[TransformerLayer],
        *,
        position: nn.Module,
        norm: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.position, self.dropout, self.norm = position, Dropout(dropout), norm
        self.layers = nn.ModuleList(layers)
        self.width = layers[0].dim

    def forward(
        self, x: Tensor, memory: Memory | None = None, carried: DecoderState | None = None
    ) -> tuple[Tensor, DecoderState | None]:
        start = 0 if carried is None else carried.length
        x = self.dropout(self.position(x, start))
        for i, layer in enumerate(self.layers):
            x = layer(x, memory, mask=CAUSAL, caches=None if carried is None else carried.caches[i])
        if carried is not None:
            carried.length += x.shape[1]
        return self.norm(x), carried

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        return DecoderState(memory, caches=[(Cache(), Cache()) for _ in self.layers])

    def step(self, x: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        features, _ = self.forward(x[:, None], carried.memory, carried)
        return features[:, 0], carried


class RecurrentDecoder(nn.Module):
    """y^d(t) = cell(y^d(t−1), y(t−1)); features y^d(t), or [y^d(t); y^a(t)] with a look at the memory.

    The attention does not enter the recurrence, so all steps of a known target run at once.
    """

    joins = True

    def __init__(
        self,
        stack: RecurrentStack,
        *,
        initial_state: nn.Module | None = None,
        attention: nn.Module | None = None,
        dropout: float = 0.0,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.stack, self.initial_state, self.attention = stack, initial_state, attention
        self.width = stack.width + (0 if attention is None else attention.width)  # type: ignore[operator]
        self.before = Dropout(dropout) if before is None else before
        self.after = Dropout(dropout) if after is None else after

    def initial_hidden(self, memory: Memory | None, like: Tensor) -> RecurrentState:
        return (
            self.stack.zero_state(like)
            if memory is None or self.initial_state is None
            else self.initial_state(memory)
        )

    def forward(
        self, x: Tensor, memory: Memory | None = None, carried: DecoderState | None = None
    ) -> tuple[Tensor, DecoderState]:
        carried = self.start(memory, x) if carried is None else carried
        y, hidden = self.stack(self.before(x), carried.hidden)
        if self.attention is not None and carried.memory is not None:
            y = torch.cat([y, self.attention(y, carried.memory).to(y.dtype)], -1)
        return self.after(y), DecoderState(carried.memory, hidden)

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        return DecoderState(memory, self.initial_hidden(memory, batch))

    def step(self, x: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        features, carried = self.forward(x[:, None], None, carried)
        return features[:, 0], carried


class _StepByStep(RecurrentDecoder):
    """A recurrence that attention enters: each step waits for the one before."""

    def forward(
        self, x: Tensor, memory: Memory | None = None, carried: DecoderState | None = None
    ) -> tuple[Tensor, DecoderState]:
        carried = self.start(memory, x) if carried is None else carried
        found = []
        for t in range(x.shape[1]):
            features, carried = self.step(x[:, t], carried)
            found.append(features)
        return torch.stack(found, 1), carried


class InputFeedingDecoder(_StepByStep):
    """The context of the step before is fed in beside the word: cell(y^d(t−1), [y(t−1); y^a(t−1)]) (Luong et al. 2015, 3.3)."""

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        hidden = self.initial_hidden(memory, batch)
        return DecoderState(memory, hidden, context=hidden[0][0].new_zeros(len(batch), self.attention.width))  # type: ignore[union-attr]

    def step(self, x: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        assert carried.context is not None and carried.memory is not None and self.attention is not None
        fed = torch.cat([self.before(x), carried.context.to(x.dtype)], -1)
        y, hidden = self.stack(fed[:, None], carried.hidden)
        context = self.attention(y, carried.memory)
        features = self.after(torch.cat([y, context.to(y.dtype)], -1))[:, 0]
        return features, DecoderState(carried.memory, hidden, context[:, 0])


class BahdanauDecoder(_StepByStep):
    """s_i = cell(s_(i−1), [y_(i−1); c_i]) with c_i looked up by s_(i−1); features [s_i; c_i; y_(i−1)] (Bahdanau et al. 2015)."""

    def __init__(
        self,
        dim: int,
        stack: RecurrentStack,
        *,
        initial_state: nn.Module,
        attention: AdditiveCrossAttention,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(stack, initial_state=initial_state, attention=attention, dropout=dropout)
        self.width += dim

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        if memory is None or not isinstance(self.attention, AdditiveCrossAttention):
            raise ShapeError(
                "Bahdanau's decoder attends to an encoder; for a language model use a recurrent or Transformer decoder"
            )
        return DecoderState(
            memory, self.initial_hidden(memory, batch), projected=self.attention.project(memory)
        )

    def step(self, x: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        assert carried.memory is not None and carried.projected is not None and self.attention is not None
        x = self.before(x)
        context = self.attention(carried.hidden[-1][0][:, None], carried.memory, carried.projected)[:, 0].to(
            x.dtype
        )
        y, hidden = self.stack(torch.cat([x, context], -1)[:, None], carried.hidden)
        features = self.after(torch.cat([y[:, 0], context, x], -1))
        return features, DecoderState(carried.memory, hidden, projected=carried.projected)


class LearnedInitialState(nn.Module):
    """y^d(0) = tanh(W · s + b) for every layer, with s the encoder's final or mean state."""

    def __init__(self, memory_width: int, stack: RecurrentStack, *, of: str = "final") -> None:
        super().__init__()
        self.of = of
        parts = 2 if stack.cell == "lstm" else 1
        self.sizes = [[w] * parts for w in stack.widths]
        self.map = nn.Linear(memory_width, sum(map(sum, self.sizes)))

    def forward(self, memory: Memory) -> RecurrentState:
        found = torch.tanh(self.map(memory.final() if self.of == "final" else memory.mean()))
        parts = iter(found.split([w for layer in self.sizes for w in layer], -1))
        return [tuple(next(parts) for _ in layer) for layer in self.sizes]


class CopiedInitialState(nn.Module):
    """y^d(0) = y^e(T^e): the decoder goes on where the encoder's recurrence ended."""

    def forward(self, memory: Memory) -> RecurrentState:
        assert memory.last is not None  # checked when the model is built
        return memory.last
