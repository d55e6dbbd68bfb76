"""Autoregressive models, which generate a text token by token: what translators and language models share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.data.tokenizer import BOS, PAD
from regard.errors import OptionError
from regard.models.chunked_loss import Loss
from regard.models.embedding import Embedding, Output, TokenInputOptions
from regard.models.memory import DecoderState, Memory
from regard.models.model import Model
from regard.models.options import (
    MODELS,
    DecoderOptions,
    EncoderOptions,
    InputOptions,
    ModelOptions,
    Size,
    build_decoder,
    build_encoder,
)
from regard.models.options import Dropout as DropoutRate
from regard.models.transformer import TransformerOptions


@MODELS.add("autoregressive")
class AutoregressiveOptions(ModelOptions):
    """A model that generates text: a translator, or a language model."""

    kind: Literal["autoregressive"] = "autoregressive"
    dim: Size = Field(default=512, description="width of the embeddings and of a Transformer")
    tie: Literal["all", "target", "none"] = Field(
        default="all",
        description="all: one matrix for source, target and output; target: for target and output; none",
    )
    scale_embeddings: bool = Field(
        default=True, description="multiply embeddings by √dim; needed if the output layer shares the table"
    )
    output_bias: bool | None = Field(
        default=None, description="a bias per token in the output layer; null: only in language models"
    )
    dropout: DropoutRate = Field(
        default=0.1,
        description="dropout of embeddings and residual branches, where encoder and decoder do not set it",
    )
    encoder: EncoderOptions | None = Field(
        default=None,
        description="the encoder of a translator; null: a Transformer in translators, none in language "
        "models",
    )
    decoder: DecoderOptions = Field(default=TransformerOptions(), description="the decoder")
    input: InputOptions = Field(
        default=TokenInputOptions(),
        description="of the encoder: tokens (a table) or frames (a linear map of sequences of numbers)",
    )

    def check(self) -> Iterator[str]:
        yield from self.input.check(self)
        if self.encoder is not None:
            yield from self.encoder.check(self.dim, "model.encoder")
        yield from self.decoder.check_decoder(self.dim, self.encoder, "model.decoder")

    def build(self, source_vocab: int | None, target_vocab: int) -> AutoregressiveModel:
        from regard.models.language_model import LanguageModel  # subclasses of AutoregressiveModel
        from regard.models.translator import Translator

        rate = getattr(self.decoder, "embedding_dropout", 0.0)
        target = Embedding.scaled(target_vocab, self.dim, self.scale_embeddings, embedding_dropout=rate)
        if self.encoder is None:
            decoder = build_decoder(self.decoder, self.dim, self.dropout, None)
            # The bias models token frequency. Without it, a deep recurrence saturates and stops learning.
            output = self._output(decoder, target, bias=self.output_bias is not False)
            return LanguageModel(target, decoder, output)
        if source_vocab is None:
            raise OptionError("a model with an encoder needs a source vocabulary; give source_vocab")
        rate = getattr(self.encoder, "embedding_dropout", 0.0)
        source: Any = self.input.build_input(
            source_vocab, self.dim, scaled=self.scale_embeddings, embedding_dropout=rate
        )
        if self.tie == "all":
            if not self.input.reads_text:
                raise OptionError(
                    f"tie: all shares an embedding table, and {self.input.kind} have none; use target"
                )
            if source_vocab != target_vocab:
                raise OptionError(
                    f"tie: all shares one table between {source_vocab} source and {target_vocab} target "
                    "tokens; use a joint tokenizer, or tie: target"
                )
            source.table = target.table
        encoder = build_encoder(self.encoder, self.dim, self.dropout)
        decoder = build_decoder(self.decoder, self.dim, self.dropout, encoder)
        output = self._output(decoder, target, bias=bool(self.output_bias))
        return Translator(source, encoder, target, decoder, output)

    def _output(self, decoder: Any, target: Embedding, *, bias: bool) -> Output:
        tied = None if self.tie == "none" else target.table
        return Output(decoder.width, target.vocab, tied=tied, bias=bias)


class AutoregressiveModel(Model):
    """p(y_t | y_<t, memory): target embedding, decoder, output layer."""

    num_inputs = 1  # of `forward`: a language model takes one text, a translator two

    def __init__(self, target: Embedding, decoder: nn.Module, output: Output) -> None:
        super().__init__()
        self.target, self.decoder, self.output = target, decoder, output

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        """Return the decoder state before the first token, for the batch size and device of `batch`."""
        return self.decoder.start(memory, batch)  # type: ignore[operator]

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Feed one token per sentence, (batch,) → scores of the next, (batch, vocabulary)."""
        features, state = self.decoder.step(self.target(tokens[:, None])[:, 0], state)  # type: ignore[operator]
        return self.output(features), state

    def read(self, tokens: Tensor, state: DecoderState) -> DecoderState:
        """Prefill: feed a given prefix (batch, T) in one pass and return the state after it."""
        return self.decoder(self.target(tokens), state.memory, state)[1]

    def best(self, tokens: Tensor, state: DecoderState, k: int) -> tuple[Tensor, Tensor, DecoderState]:
        """Feed one token per sentence; return log p and ids of the k best next tokens, best first.

        Both are (batch, k), or (batch, vocabulary) if that is smaller.
        """
        scores, state = self.step(tokens, state)
        if k == 1:  # greedy search: a maximum and a sum, without a second matrix
            scores = mask_special_tokens(scores)
            top, tokens = scores.max(-1, keepdim=True)
            return top - scores.logsumexp(-1, keepdim=True), tokens, state
        log_p, tokens = log_probabilities(scores).topk(min(k, scores.shape[-1]), -1)
        return log_p, tokens, state

    @property
    def can_join(self) -> bool:
        """True if new sentences can join a running batch: `state.join(other)`."""
        return self.decoder.can_join  # type: ignore[return-value]

    def reorder(self, state: DecoderState, rows: Tensor) -> DecoderState:
        return state.reorder(rows)

    def forward_for_flops(self, source: Tensor, target: Tensor) -> Tensor:
        return self(*(source, target)[-self.num_inputs :])

    def loss(
        self, batch: Batch, smoothing: float = 0.0, state: DecoderState | None = None, agreement: float = 0.0
    ) -> Loss:
        """The loss of a batch; with `agreement`, of two passes (see `cross_entropy`)."""
        raise NotImplementedError


def require_autoregressive(model: Any, what: str) -> Any:
    """Return the model if it generates text, else raise an OptionError that names `what` it is needed for."""
    if not isinstance(model, AutoregressiveModel):
        raise OptionError(
            f"{what} are for translators and language models, and this is {model.what}; "
            "give one that generates text"
        )
    return model


def mask_special_tokens(scores: Tensor) -> Tensor:
    """Scores in float32 or float64, with −∞ at PAD and BOS, which are never generated."""
    scores = scores if scores.dtype == torch.float64 else scores.float()
    scores[..., PAD] = scores[..., BOS] = -torch.inf
    return scores


def log_probabilities(scores: Tensor) -> Tensor:
    """log p of every next token, without PAD and BOS."""
    return torch.log_softmax(mask_special_tokens(scores), -1)
