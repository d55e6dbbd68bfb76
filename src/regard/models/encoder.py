"""Encoders: token embeddings (batch, S, dim) and lengths → `Memory`, one state per token.

Each kind has its options (the `encoder:` block of a recipe) and, below them, its module. The Transformer is
in transformer.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, Tag
from torch import Tensor, nn

from regard.attention.position import Learned
from regard.layers.convolution import Convolution
from regard.layers.dropout import Dropout
from regard.layers.recurrent import RecurrentStack
from regard.models.attention_options import POSITIONS, PositionName
from regard.models.memory import Memory, token_mask
from regard.models.options import ENCODERS, EncoderOptions, Size, build_encoder, by_kind
from regard.models.options import Dropout as DropoutRate
from regard.models.transformer import TransformerEncoder, TransformerOptions

Cell = Literal["rnn", "gru", "lstm"]


def max_positions(module: Any) -> int | None:
    """Return how many tokens an encoder or decoder can read: the rows of its smallest learned position table.

    None if it has no such table, or if `module` is None (a model without an encoder).
    """
    modules = module.modules() if isinstance(module, nn.Module) else ()
    return min((inner.maxlen for inner in modules if isinstance(inner, Learned)), default=None)


@ENCODERS.add("recurrent")
class RecurrentEncoderOptions(EncoderOptions):
    """An RNN, GRU or LSTM."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Cell = Field(default="gru", description="the recurrent cell")
    layers: Size = Field(default=1, description="number of layers")
    width: Size | None = Field(
        default=None, description="width of each layer's output, both directions together; null: dim"
    )
    bidirectional: bool = Field(default=True, description="read from both ends, half the width each")
    dropout: DropoutRate | None = Field(
        default=None, description="dropout of embeddings and between layers; null: the model's"
    )

    def width_of(self, dim: int) -> int:
        return self.width or dim

    def check(self, dim: int, place: str) -> Iterator[str]:
        if self.bidirectional and self.width_of(dim) % 2:
            width = self.width_of(dim)
            yield f"{place}.width is {width}, and a bidirectional encoder halves it; take an even one"

    def build_encoder(self, dim: int, dropout: float) -> RecurrentEncoder:
        shape = {"cell": self.cell, "layers": self.layers, "bidirectional": self.bidirectional}
        return RecurrentEncoder(
            RecurrentStack(dim, self.width_of(dim), dropout=dropout, **shape), dropout=dropout
        )


class RecurrentEncoder(nn.Module):
    """y^e(t) = cell(y^e(t−1), x(t)), in one direction or in both, concatenated."""

    def __init__(self, stack: RecurrentStack, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.stack, self.dropout, self.width = stack, Dropout(dropout), stack.width

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        states, last = self.stack(self.dropout(x), lengths=lengths)
        return Memory(self.dropout(states), lengths, last)


@ENCODERS.add("convolutional")
class ConvolutionalEncoderOptions(EncoderOptions):
    """Stacked convolutions with residual connections."""

    kind: Literal["convolutional"] = "convolutional"
    layers: Size = Field(default=4, description="number of layers")
    kernel: Size = Field(default=3, description="kernel width: tokens that each layer sees")
    width: Size | None = Field(default=None, description="width of each layer's output; null: dim")
    position: Literal["sinusoidal", "learned", "channel", "none"] = Field(
        default="sinusoidal", description="position encoding"
    )
    max_positions: Size = Field(default=1024, description="rows of a learned position table")
    dropout: DropoutRate | None = Field(
        default=None, description="dropout of embeddings and residual branches; null: the model's"
    )

    def width_of(self, dim: int) -> int:
        return self.width or dim

    def check(self, dim: int, place: str) -> Iterator[str]:
        if self.position == "sinusoidal" and dim % 2:
            yield (
                f"{place}.position is sinusoidal, which needs an even width, and model.dim is {dim}; "
                "take an even one, or learned"
            )

    def build_encoder(self, dim: int, dropout: float) -> ConvolutionalEncoder:
        position = POSITIONS[self.position].inputs(dim, self.max_positions)
        shape = (dim, self.width_of(dim), self.kernel, self.layers)
        return ConvolutionalEncoder(*shape, position=position, dropout=dropout)


class ConvolutionalEncoder(nn.Module):
    """Residual convolutions x + relu(conv(x)). Padding is set to zero before each, so it has no influence."""

    def __init__(
        self, dim: int, width: int, kernel: int, layers: int, *, position: nn.Module, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.width, self.position = width, position
        self.widen = nn.Linear(dim, width) if dim != width else nn.Identity()
        self.layers = nn.ModuleList(Convolution(width, kernel) for _ in range(layers))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        x = self.widen(self.dropout(self.position(x)))  # (batch, S, dim) → (batch, S, width)
        for layer in self.layers:
            x = x if lengths is None else x * token_mask(x, lengths)
            x = x + self.dropout(torch.relu(layer(x)))
        return Memory(x, lengths)


class UpperOptions(TransformerOptions):
    """The self-attention of a stacked encoder; the encoder below already provides the order."""

    layers: Size = Field(default=1, description="number of layers")
    position: PositionName = Field(default="none", description="position encoding")


Lower = Annotated[
    Annotated[RecurrentEncoderOptions, Tag("recurrent")]
    | Annotated[ConvolutionalEncoderOptions, Tag("convolutional")],
    by_kind("recurrent"),
]


@ENCODERS.add("stacked")
class StackedEncoderOptions(EncoderOptions):
    """Self-attention on top of a recurrent or convolutional encoder."""

    kind: Literal["stacked"] = "stacked"
    below: Lower = Field(
        default=RecurrentEncoderOptions(), description="the encoder that reads the embeddings"
    )
    above: UpperOptions = Field(default=UpperOptions(), description="the self-attention on top of it")

    def check(self, dim: int, place: str) -> Iterator[str]:
        yield from self.below.check(dim, f"{place}.below")
        yield from self.above.check(dim, f"{place}.above")

    def build_encoder(self, dim: int, dropout: float) -> StackedEncoder:
        below = build_encoder(self.below, dim, dropout)
        return StackedEncoder(below, build_encoder(self.above, dim, dropout))


class StackedEncoder(nn.Module):
    """Self-attention on top of a recurrent or convolutional encoder."""

    def __init__(self, below: Any, above: TransformerEncoder) -> None:
        super().__init__()
        self.below, self.above, self.width = below, above, above.width
        width = below.width
        self.fit = nn.Linear(width, above.width) if width != above.width else nn.Identity()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        memory = self.below(x, lengths)
        return self.above(self.fit(memory.states), lengths)


@ENCODERS.add("embedding")
class EmbeddingEncoderOptions(EncoderOptions):
    """The token embeddings themselves: pooled, a bag of words."""

    kind: Literal["embedding"] = "embedding"
    dropout: DropoutRate | None = Field(default=None, description="dropout of embeddings; null: the model's")
    embedding_dropout: DropoutRate = Field(
        default=0.0, description="dropout of whole rows of the embedding table (Gal & Ghahramani 2016)"
    )

    def build_encoder(self, dim: int, dropout: float) -> EmbeddingEncoder:
        return EmbeddingEncoder(dim, dropout=dropout)


class EmbeddingEncoder(nn.Module):
    """Return the token embeddings as states; pooling them gives a bag of words."""

    def __init__(self, dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.width, self.dropout = dim, Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        return Memory(self.dropout(x), lengths)


@ENCODERS.add("text-cnn")
class TextCnnEncoderOptions(EncoderOptions):
    """TextCNN: convolutions of several widths side by side (Kim 2014), for max pooling."""

    kind: Literal["text-cnn"] = "text-cnn"
    kernels: Annotated[list[Size], Field(min_length=1)] = Field(
        default=[3, 4, 5], description="kernel widths, in tokens"
    )
    width: Size = Field(default=100, description="features of each kernel width")
    dropout: DropoutRate | None = Field(default=None, description="dropout of embeddings; null: the model's")

    def width_of(self, dim: int) -> int:
        return self.width * len(self.kernels)

    def build_encoder(self, dim: int, dropout: float) -> TextCnnEncoder:
        return TextCnnEncoder(dim, self.width, self.kernels, dropout=dropout)


class TextCnnEncoder(nn.Module):
    """Convolutions of several widths, relu(conv_k(x)), concatenated: detectors of k-grams (Kim 2014)."""

    def __init__(self, dim: int, width: int, kernels: Sequence[int], *, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = width * len(kernels)
        self.layers = nn.ModuleList(Convolution(dim, kernel, out_dim=width) for kernel in kernels)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Memory:
        x = self.dropout(x)
        x = x if lengths is None else x * token_mask(x, lengths)
        return Memory(torch.cat([torch.relu(layer(x)) for layer in self.layers], -1), lengths)
