"""What translators and language models share: they write a text word by word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Batch
from regard.data.tokenizer import BOS, PAD
from regard.errors import OptionError
from regard.layers.linear import is_plain
from regard.models.decoder import DecoderState
from regard.models.embedding import Embedding, Output
from regard.models.loss import Loss, cross_entropy, cross_entropy_of_scores
from regard.models.memory import Memory
from regard.models.model import Model


class AutoregressiveModel(Model):
    """p(y_t | y_<t, memory) by a decoder between the target's word vectors and the scores of all words."""

    texts = 1  # a language model takes one text, a translator two

    def __init__(self, target: Embedding, decoder: nn.Module, output: Output) -> None:
        super().__init__()
        self.target, self.decoder, self.output = target, decoder, output

    def start(self, memory: Memory | None, batch: Tensor) -> DecoderState:
        """The state before the first word, for the sentences of `batch` (batch, …)."""
        return self.decoder.start(memory, batch)  # type: ignore[operator]

    def step(self, tokens: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        """One more word of each sentence, (batch,) → scores of the next, (batch, vocabulary)."""
        features, carried = self.decoder.step(self.target(tokens[:, None])[:, 0], carried)  # type: ignore[operator]
        return self.output(features), carried

    def read(self, tokens: Tensor, carried: DecoderState) -> DecoderState:
        """Words that are given, (batch, T), taken in all at once: the state behind them."""
        return self.decoder(self.target(tokens), carried.memory, carried)[1]

    def best(self, tokens: Tensor, carried: DecoderState, k: int) -> tuple[Tensor, Tensor, DecoderState]:
        """One more word of each sentence → log p and numbers of the k best next words, (batch, at most k), best first."""
        scores, carried = self.step(tokens, carried)
        if k == 1:  # greedy: the place of the maximum, and one sum instead of a second matrix
            scores = writable(scores)
            top, words = scores.max(-1, keepdim=True)
            return top - scores.logsumexp(-1, keepdim=True), words, carried
        log_p, words = log_probabilities(scores).topk(min(k, scores.shape[-1]), -1)
        return log_p, words, carried

    @property
    def joins(self) -> bool:
        """Whether new sentences can join running ones: `carried.join(other)`."""
        return self.decoder.joins  # type: ignore[return-value]

    def reorder(self, carried: DecoderState, rows: Tensor) -> DecoderState:
        return carried.reorder(rows)

    def predict(self, features: Tensor, labels: Tensor, smoothing: float, agreement: float = 0.0) -> Loss:
        features, words = self.output.ready(features), self.output.words
        if is_plain(words):
            return cross_entropy(features, words.weight, labels, smoothing, words.bias, agreement)
        return cross_entropy_of_scores(words(features), labels, smoothing, agreement)

    def counted(self, source: Tensor, target: Tensor) -> Tensor:
        return self(*(source, target)[-self.texts :])

    def loss(
        self, batch: Batch, smoothing: float = 0.0, state: DecoderState | None = None, agreement: float = 0.0
    ) -> Loss:
        """The loss of a batch; with `agreement`, of two readings of it under different dropout (see `cross_entropy`)."""
        raise NotImplementedError


def writing(model: Any, what: str) -> Any:
    """The model, if it writes a text; else an OptionError, for `what` is for those that do."""
    if not isinstance(model, AutoregressiveModel):
        raise OptionError(
            f"{what} are for translators and language models, and this is {model.what}; give one that writes"
        )
    return model


def writable(scores: Tensor) -> Tensor:
    """Scores of at least float32 in which PAD and BOS, which nobody writes, cannot win."""
    scores = scores if scores.dtype == torch.float64 else scores.float()
    scores[..., PAD] = scores[..., BOS] = -torch.inf
    return scores


def log_probabilities(scores: Tensor) -> Tensor:
    """log p of every next word, PAD and BOS excepted."""
    return torch.log_softmax(writable(scores), -1)
