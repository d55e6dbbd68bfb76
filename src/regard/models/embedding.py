"""Token embeddings and the output layer: the two ends of a model."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from regard.data.tokenizer import BOS, PAD
from regard.layers.dropout import embedding_dropout as drop_rows
from regard.models.options import INPUTS, InputOptions


@INPUTS.add("tokens")
class TokenInputOptions(InputOptions):
    """Tokens of a text: rows of an embedding table."""

    kind: Literal["tokens"] = "tokens"

    def build_input(self, size: int, dim: int, *, scaled: bool, embedding_dropout: float) -> Embedding:
        return Embedding.scaled(size, dim, scaled, embedding_dropout=embedding_dropout)


class Embedding(nn.Module):
    """Token embeddings E[token] · scale; the usual scale is √dim (Vaswani et al. 2017, 3.4).

    An output layer that shares the table needs small values, the first layer values near one: the scale
    serves both. Without it a tied recurrence of several layers hardly learns. `embedding_dropout` drops whole
    rows of the table.
    """

    def __init__(self, vocab: int, dim: int, *, scale: float = 1.0, embedding_dropout: float = 0.0) -> None:
        super().__init__()
        self.vocab, self.scale, self.embedding_dropout = vocab, scale, embedding_dropout
        self.table = nn.Embedding(vocab, dim, padding_idx=PAD)
        nn.init.normal_(self.table.weight, std=1 / math.sqrt(dim))
        self.table.weight.data[PAD].zero_()

    @classmethod
    def scaled(cls, vocab: int, dim: int, scale: bool, *, embedding_dropout: float = 0.0) -> Embedding:
        """An embedding that is multiplied by √dim if `scale` is True."""
        return cls(vocab, dim, scale=math.sqrt(dim) if scale else 1.0, embedding_dropout=embedding_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        if self.training and self.embedding_dropout:  # the same rows for the whole batch
            x = x * drop_rows(x.new_ones(self.vocab, 1), self.embedding_dropout)[tokens]
        return x if self.scale == 1.0 else x * self.scale

    def example(self, length: int) -> Tensor:
        """Token ids (1, length) without content."""
        return torch.zeros(1, length, dtype=torch.long, device="meta")


def prepend_bos(tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Prepend BOS: (batch, S) → (batch, 1 + S). It has the role of BERT's CLS."""
    return nn.functional.pad(tokens, (1, 0), value=BOS), None if lengths is None else lengths + 1


class Output(nn.Module):
    """Scores (logits) W^o y of every token.

    Tied, W^o is the target embedding table E; if the features have another width, W^o = E R with a learned R
    (`readout`).
    """

    def __init__(
        self, width: int, vocab: int, *, tied: nn.Embedding | None = None, bias: bool = False
    ) -> None:
        super().__init__()
        dim = width if tied is None else tied.embedding_dim
        self.readout = nn.Linear(width, dim, bias=False) if dim != width else nn.Identity()
        self.projection = nn.Linear(dim, vocab, bias=bias)
        if bias:
            nn.init.zeros_(self.projection.bias)
        if tied is None:
            nn.init.normal_(self.projection.weight, std=1 / math.sqrt(dim))
        else:
            self.projection.weight = tied.weight

    def forward(self, features: Tensor) -> Tensor:
        return self.projection(self.readout(features))
