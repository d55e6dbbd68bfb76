"""Ensembles: decode with the mean of the probabilities of several models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard import arguments
from regard.errors import OptionError
from regard.models.autoregressive import log_probabilities


@dataclass
class EnsembleState:
    """The decoder states of the models."""

    states: list[Any]

    def reorder(self, rows: Tensor) -> EnsembleState:
        return EnsembleState([state.reorder(rows) for state in self.states])

    def join(self, other: EnsembleState) -> EnsembleState:
        pairs = zip(self.states, other.states, strict=True)
        return EnsembleState([state.join(other_state) for state, other_state in pairs])


class Ensemble:
    """Several translators or language models as one: p(y_t) is the mean of their probabilities.

    >>> first, second = regard.load("runs/seed-1"), regard.load("runs/seed-2")  # doctest: +SKIP
    >>> regard.translate("Tom is happy.", regard.Ensemble([first, second]), beam=5)  # doctest: +SKIP
    'Tom ist glücklich.'

    The models must share their vocabularies and their device.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = arguments.as_list("models", models, "a list of translators or of language models")
        for model in self.models:
            if not hasattr(model, "start") or not hasattr(model, "device"):
                raise OptionError(
                    f"an ensemble consists of translators or language models, got {arguments.quoted(model)}"
                )
        if not self.models:
            raise OptionError("an ensemble needs at least one model, got none")
        if len({hasattr(model, "encode") for model in self.models}) > 1:
            raise OptionError(
                "an ensemble consists of translators or of language models, not of both; leave out one kind"
            )
        first = self.models[0]
        for side in ("source_tokenizer", "target_tokenizer"):
            tokenizers = [getattr(model, side, None) for model in self.models]
            for i, tokenizer in enumerate(tokenizers):
                if tokenizer != tokenizers[0]:
                    raise OptionError(
                        f"model {i + 1} of the ensemble has another {side.replace('_', ' ')} than model 1 "
                        f"({tokenizer!r} and {tokenizers[0]!r}); use models trained with the same"
                    )
            setattr(self, side, tokenizers[0])
        if len({str(model.device) for model in self.models}) > 1:
            raise OptionError("the models of an ensemble are on different devices; load them on one")
        self.card, self.device = getattr(first, "card", {}), first.device
        if hasattr(first, "encode"):
            self.encode = self._encode
        self.can_join = all(model.can_join for model in self.models)

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

    def start(self, memory: list[Any] | None, first: Tensor) -> EnsembleState:
        memories = memory or [None] * len(self.models)
        pairs = zip(self.models, memories, strict=True)
        return EnsembleState([model.start(model_memory, first) for model, model_memory in pairs])

    def read(self, tokens: Tensor, state: EnsembleState) -> EnsembleState:
        pairs = zip(self.models, state.states, strict=True)
        return EnsembleState([model.read(tokens, model_state) for model, model_state in pairs])

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Return the log of the mean probability of every next token, (rows, vocabulary)."""
        pairs = zip(self.models, state.states, strict=True)
        results = [model.step(tokens, model_state) for model, model_state in pairs]
        log_p = torch.stack([log_probabilities(scores) for scores, _ in results]).logsumexp(0)
        return log_p - math.log(len(results)), EnsembleState([model_state for _, model_state in results])

    def best(self, tokens: Tensor, state: EnsembleState, k: int) -> tuple[Tensor, Tensor, EnsembleState]:
        log_p, state = self.step(tokens, state)
        best, ids = log_p.topk(min(k, log_p.shape[-1]), -1)
        return best, ids, state
