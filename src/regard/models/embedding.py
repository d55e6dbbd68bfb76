"""The two ends of a model: words to vectors, and features to scores of words."""

from __future__ import annotations

import math

from torch import Tensor, nn

from regard.data.tokenizer import BOS, PAD
from regard.layers.dropout import embedding_dropout as drop_rows


class Embedding(nn.Module):
    """Word vectors E[token] · scale, as a rule √dim (Vaswani et al. 2017, 3.4): small numbers suit the output that shares the
    table, numbers of size one suit the layer that reads them. Without it a tied recurrence of several layers hardly starts.
    """

    def __init__(self, vocab: int, dim: int, *, scale: float = 1.0, embedding_dropout: float = 0.0) -> None:
        super().__init__()
        self.vocab, self.scale, self.embedding_dropout = vocab, scale, embedding_dropout
        self.table = nn.Embedding(vocab, dim, padding_idx=PAD)
        nn.init.normal_(self.table.weight, std=1 / math.sqrt(dim))
        self.table.weight.data[PAD].zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        if self.training and self.embedding_dropout:  # the same tokens in the whole batch
            x = x * drop_rows(x.new_ones(self.vocab, 1), self.embedding_dropout)[tokens]
        return x if self.scale == 1.0 else x * self.scale


def put_bos_first(tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """x1 … xn → BOS x1 … xn, (batch, S) → (batch, 1 + S): where BERT has its CLS."""
    return nn.functional.pad(tokens, (1, 0), value=BOS), None if lengths is None else lengths + 1


class Output(nn.Module):
    """Scores W^o y of every word, before the softmax. Tied, W^o is the table of the target words; when the features have
    another width than the words, a map R stands between: W^o = E R. A `bias` is a number per word that no state has to express.
    """

    def __init__(
        self, width: int, vocab: int, *, tied: nn.Embedding | None = None, bias: bool = False
    ) -> None:
        super().__init__()
        dim = width if tied is None else tied.embedding_dim
        self.readout = nn.Linear(width, dim, bias=False) if dim != width else nn.Identity()
        self.words = nn.Linear(dim, vocab, bias=bias)
        if bias:
            nn.init.zeros_(self.words.bias)
        if tied is None:
            nn.init.normal_(self.words.weight, std=1 / math.sqrt(dim))
        else:
            self.words.weight = tied.weight

    def ready(self, features: Tensor) -> Tensor:
        """The features as the last map takes them."""
        return self.readout(features)

    def forward(self, features: Tensor) -> Tensor:
        return self.words(self.ready(features))
