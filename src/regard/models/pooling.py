"""Poolings: the states of a text in, one vector out. Memory (batch, S, width) → (batch, pooling.width).

Padding never counts, and a text without any words is a vector of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention.call import SCALED_DOT, SOFTMAX
from regard.attention.energy import Energy
from regard.attention.normalize import Normalizer
from regard.layers.multihead import MultiHead
from regard.layers.recurrent import RecurrentStack
from regard.models.memory import Memory, real


class Mean(nn.Module):
    """The mean of the states: how many words there are does not matter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, memory: Memory) -> Tensor:
        return memory.mean()


class Sum(nn.Module):
    """The sum of the states: every word adds its share, so longer texts give longer vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, memory: Memory) -> Tensor:
        x = memory.states
        return (x if memory.lengths is None else x * real(x, memory.lengths)).sum(1)


class Max(nn.Module):
    """The largest value of each feature: whether something occurs, wherever (max over time, Collobert et al. 2011)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, memory: Memory) -> Tensor:
        x = memory.states
        if not x.shape[1]:
            return x.sum(1)  # no tokens: zeros
        if memory.lengths is None:
            return x.amax(1)
        there = real(x, memory.lengths).bool()
        return x.masked_fill(~there, -torch.inf).amax(1).masked_fill((memory.lengths == 0)[:, None], 0.0)


class Last(nn.Module):
    """The state at the last word; of a recurrence its last state, which has both directions' ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, memory: Memory) -> Tensor:
        found = memory.final()
        return found if memory.lengths is None else found.masked_fill((memory.lengths == 0)[:, None], 0.0)


class Recurrent(nn.Module):
    """The last state of a recurrence that reads the states: a summary that depends on their order."""

    def __init__(self, stack: RecurrentStack) -> None:
        super().__init__()
        self.stack, self.width = stack, stack.width

    def forward(self, memory: Memory) -> Tensor:
        states, last = self.stack(memory.states, lengths=memory.lengths)
        return Memory(states, memory.lengths, last).final()


class AttentionPooling(nn.Module):
    """A learned query attends to the states and takes their weighted mean; several queries give as many, side by side.

    With the softmax of a dot product this is the attention of Yang et al. 2016 without their tanh, with an additive energy it
    is with it. The weights are those of `attend`, so `regard.watch` sees them: a row of them for each query.
    """

    def __init__(
        self,
        width: int,
        *,
        queries: int = 1,
        heads: int = 1,
        energy: Energy | None = None,
        normalize: Normalizer | None = None,
    ) -> None:
        super().__init__()
        self.width = queries * width
        self.query = nn.Parameter(torch.randn(queries, width) / math.sqrt(width))
        self.attention = MultiHead(
            width,
            heads,
            project=False,
            energy=SCALED_DOT if energy is None else energy,
            normalize=SOFTMAX if normalize is None else normalize,
        )

    def forward(self, memory: Memory) -> Tensor:
        query = self.query.expand(len(memory.states), -1, -1)  # (batch, queries, width)
        return self.attention(query, memory.states, mask=memory.mask).flatten(1)


class Concatenated(nn.Module):
    """Several poolings of the same states, side by side."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.width = sum(int(part.width) for part in parts)  # type: ignore[arg-type]

    def forward(self, memory: Memory) -> Tensor:
        return torch.cat([part(memory) for part in self.parts], -1)
