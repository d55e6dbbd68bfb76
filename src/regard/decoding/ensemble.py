"""Several models write one text together: the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import arguments
from regard.errors import OptionError
from regard.models.autoregressive import log_probabilities


@dataclass
class DecoderState:
    """What each model carries."""

    each: list[Any]

    def reorder(self, rows: Tensor) -> DecoderState:
        return DecoderState([carried.reorder(rows) for carried in self.each])

    def join(self, other: DecoderState) -> DecoderState:
        return DecoderState([mine.join(theirs) for mine, theirs in zip(self.each, other.each, strict=True)])


class Ensemble:
    """p(y_t) = mean over the models of their p(y_t): a writer like each of them. They share their vocabularies."""

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = arguments.as_list("models", models, "a list of translators or of language models")
        for model in self.models:
            if not hasattr(model, "start") or not hasattr(model, "device"):
                raise OptionError(
                    f"an ensemble holds translators or language models, got {arguments.quoted(model)}"
                )
        if not self.models:
            raise OptionError("an ensemble needs at least one model, got none")
        if len({hasattr(model, "encode") for model in self.models}) > 1:
            raise OptionError(
                "an ensemble holds translators or language models, not both; leave out one kind"
            )
        first = self.models[0]
        for side in ("source_tokenizer", "target_tokenizer"):
            tokenizers = [getattr(model, side, None) for model in self.models]
            for i, tokenizer in enumerate(tokenizers):
                if tokenizer != tokenizers[0]:
                    raise OptionError(
                        f"model {i + 1} of the ensemble has another {side.replace('_', ' ')} than model 1 ({tokenizer!r} and "
                        f"{tokenizers[0]!r}); take models that were trained with the same"
                    )
            setattr(self, side, tokenizers[0])
        if len({str(model.device) for model in self.models}) > 1:
            raise OptionError("the models of an ensemble lie on different devices; load them on one")
        self.card, self.device = getattr(first, "card", {}), first.device
        if hasattr(first, "encode"):
            self.encode = self._encode
        self.joins = all(model.joins for model in self.models)

    @property
    def training(self) -> bool:
        return any(getattr(model, "training", False) for model in self.models)

    def eval(self) -> Ensemble:
        return self.train(False)

    def train(self, mode: bool = True) -> Ensemble:
        for model in self.models:
            model.train(mode)
        return self

    def _encode(self, source: Tensor, lengths: Tensor | None = None) -> list[Any]:
        return [model.encode(source, lengths) for model in self.models]

    def start(self, memory: list[Any] | None, first: Tensor) -> DecoderState:
        memories = memory or [None] * len(self.models)
        return DecoderState(
            [model.start(each, first) for model, each in zip(self.models, memories, strict=True)]
        )

    def read(self, tokens: Tensor, carried: DecoderState) -> DecoderState:
        return DecoderState(
            [model.read(tokens, each) for model, each in zip(self.models, carried.each, strict=True)]
        )

    def step(self, tokens: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        """log of the mean probability of every next word."""
        found = [model.step(tokens, each) for model, each in zip(self.models, carried.each, strict=True)]
        log_p = torch.stack([log_probabilities(scores) for scores, _ in found]).logsumexp(0)
        return log_p - torch.tensor(float(len(found)), dtype=torch.float64).log().to(log_p), DecoderState(
            [each for _, each in found]
        )

    def best(self, tokens: Tensor, carried: DecoderState, k: int) -> tuple[Tensor, Tensor, DecoderState]:
        log_p, carried = self.step(tokens, carried)
        found, words = log_p.topk(min(k, log_p.shape[-1]), -1)
        return found, words, carried
