"""Encoders: a sentence in, one state per word out. (batch, S, dim) and lengths → Memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.attention.position import Learned
from regard.layers.convolution import Convolution
from regard.layers.dropout import Dropout
from regard.layers.recurrent import RecurrentStack
from regard.models.memory import Memory, finite_padding, real
from regard.models.transformer_layer import TransformerLayer


def positions(encoder: nn.Module) -> int | None:
    """How many tokens an encoder can read: the rows of its learned position table; None where it has none."""
    return min((part.maxlen for part in encoder.modules() if isinstance(part, Learned)), default=None)


class EmbeddingEncoder(nn.Module):
    """No reading at all: the states are the words' vectors, and what is pooled is a bag of words."""

    def __init__(self, dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.width, self.dropout = dim, Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        return Memory(self.dropout(x), lengths)


class KimEncoder(nn.Module):
    """Convolutions of several widths side by side, relu(conv_k(x)), each a detector of k-grams (Kim 2014); made for max pooling."""

    def __init__(self, dim: int, width: int, kernels: Sequence[int], *, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = width * len(kernels)
        self.layers = nn.ModuleList(Convolution(dim, kernel, out_dim=width) for kernel in kernels)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        x = self.dropout(x)
        x = x if lengths is None else x * real(x, lengths)
        return Memory(torch.cat([torch.relu(layer(x)) for layer in self.layers], -1), lengths)


class RecurrentEncoder(nn.Module):
    """y^e(t) = cell(y^e(t−1), x(t)), in one direction or both side by side."""

    def __init__(self, stack: RecurrentStack, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.stack, self.dropout, self.width = stack, Dropout(dropout), stack.width

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        states, last = self.stack(self.dropout(x), lengths=lengths)
        return Memory(self.dropout(states), lengths, last)


class ConvolutionalEncoder(nn.Module):
    """Convolutions with a way around each: x + relu(conv(x)). Padding reads as zero, so batches change nothing."""

    def __init__(
        self, dim: int, width: int, kernel: int, layers: int, *, position: nn.Module, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.width, self.position = width, position
        self.widen = nn.Linear(dim, width) if dim != width else nn.Identity()
        self.layers = nn.ModuleList(Convolution(width, kernel) for _ in range(layers))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        x = self.widen(self.dropout(self.position(x)))
        for layer in self.layers:
            x = x if lengths is None else x * real(x, lengths)
            x = x + self.dropout(torch.relu(layer(x)))
        return Memory(x, lengths)


class TransformerEncoder(nn.Module):
    """Self-attention and feed-forward layers over positions added to the words (Vaswani et al. 2017)."""

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

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        x = self.dropout(self.position(x))
        mask = None if lengths is None else finite_padding(lengths)
        for layer in self.layers:
            x = layer(x, mask=mask)
        return Memory(self.norm(x), lengths)


class StackedEncoder(nn.Module):
    """Self-attention on top of a recurrent or convolutional encoder (Poerner's hybrid)."""

    def __init__(self, below: nn.Module, above: TransformerEncoder) -> None:
        super().__init__()
        self.below, self.above, self.width = below, above, above.width
        wide = below.width
        self.fit = nn.Linear(wide, above.width) if wide != above.width else nn.Identity()  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        memory = self.below(x, lengths)
        return self.above(self.fit(memory.states), lengths)
