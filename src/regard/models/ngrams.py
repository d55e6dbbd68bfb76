"""The input layer of n-gram classifiers: hashed n-grams of tokens, as in fastText (Joulin et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.models.embedding import Embedding
from regard.models.options import INPUTS, InputOptions, Size

PRIME, FACTOR = 2**31 - 1, 1000003  # of the hash; their product fits into 64 bits


@INPUTS.add("ngrams")
class NgramInputOptions(InputOptions):
    """Hashed n-grams of tokens: with a character tokenizer, character n-grams."""

    kind: Literal["ngrams"] = "ngrams"
    sizes: Annotated[list[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1)] = Field(
        default=[1, 2, 3, 4, 5, 6], description="numbers of tokens of the n-grams"
    )
    buckets: Size = Field(
        default=131072, description="rows of the embedding table; n-grams with the same hash share one"
    )

    def check(self, model: Any) -> Iterator[str]:
        if model.kind != "classifier":
            yield f"model.input is ngrams, which a classifier reads, and this is a {model.kind}; leave it out"
            return
        for key, without in {"scale_embeddings": False, "pretrained": None, "vectors": None}.items():
            if getattr(model, key) != without:
                yield f"model.{key} is for an embedding per token, and model.input is ngrams; leave it out"
        if getattr(model.encoder, "embedding_dropout", 0.0):
            yield (
                "model.encoder.embedding_dropout drops the embeddings of tokens, and model.input is ngrams; "
                "leave it out"
            )

    def build_input(self, size: int, dim: int, *, scaled: bool, embedding_dropout: float) -> NgramEmbedding:
        return NgramEmbedding(size, dim, self.sizes, self.buckets)


class NgramEmbedding(Embedding):
    """x_t = mean over n of E[hash(token_{t−n+1} … token_t)]: (batch, S) → (batch, S, dim).

    Before the first token are PADs, so that n-grams at the start of a text differ from others. E starts at
    zero: n-grams that training has not seen have no influence.

    >>> NgramEmbedding(100, 16)(torch.tensor([[7, 8, 9]])).shape
    torch.Size([1, 3, 16])
    """

    def __init__(
        self, vocab: int, dim: int, sizes: Sequence[int] = (1, 2, 3, 4, 5, 6), buckets: int = 131072
    ) -> None:
        nn.Module.__init__(self)
        self.vocab, self.scale, self.embedding_dropout = vocab, 1.0, 0.0
        self.sizes, self.buckets = tuple(sizes), buckets
        self.table = nn.Embedding(buckets, dim)
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.stack([self.table(self.rows(tokens, n)) for n in self.sizes]).mean(0)

    def rows(self, tokens: Tensor, n: int) -> Tensor:
        """Row of the table of the n-gram that ends at each token: (batch, S) → (batch, S)."""
        padded = nn.functional.pad(tokens, (n - 1, 0))  # (batch, n − 1 + S)
        value = torch.full_like(tokens, n)
        for window in padded.unfold(1, n, 1).unbind(-1):  # the first tokens of all n-grams, the second, …
            value = (value * FACTOR + window + 1) % PRIME
        return value % self.buckets
