"""Language models as a bias probe uses them: token positions of words, their log-probabilities, attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.watching import Seen, watch
from regard.decoding.batching import evaluation_mode
from regard.errors import OptionError
from regard.models.language_model import LanguageModel
from regard.pipelines.generate import PromptEncoder

Range = tuple[int, int]  # start and end of characters


@dataclass(frozen=True)
class ReadText:
    """A text as the model reads it: token ids, and the characters of each token ((0, 0) for special ones)."""

    text: str
    ids: list[int]
    spans: list[Range]

    def positions(self, word: Range) -> list[int]:
        """The positions of the tokens that overlap a word."""
        start, stop = word
        positions = [i for i, (a, b) in enumerate(self.spans) if a < stop and b > start]
        if not positions:
            raise OptionError(
                f"no token of the model covers {self.text[start:stop]!r} in {self.text!r}; use another word"
            )
        return positions


class ProbedModel:
    """Base class: a language model of any library."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def read(self, text: str) -> ReadText:
        """Tokenize a text."""
        raise NotImplementedError

    def logits(self, ids: list[int]) -> Tensor:
        """Scores (positions, vocabulary) of the forward pass over one text."""
        raise NotImplementedError

    def log_prob(self, read: ReadText, word: Range) -> float:
        """log p of the tokens of a word."""
        raise NotImplementedError

    def continuation(self, read: ReadText, word: Range) -> float | None:
        """log p of all tokens from the word on; None if the model has no such probability."""
        return None

    @torch.no_grad()
    def attention(self, read: ReadText, query: Range, keys: Sequence[Range]) -> dict[str, Tensor]:
        """For every layer the weights (heads, keys) from the last token of one word to each other word.

        The weight of a word is the sum over its tokens.
        """
        row = read.positions(query)[-1]
        columns = [read.positions(key) for key in keys]
        with evaluation_mode(self.model), watch(self.model) as seen:
            self.logits(read.ids)
        return {name: _to_words(seen, name, row, columns) for name in seen}

    @torch.no_grad()
    def _log_probs(self, ids: list[int]) -> Tensor:
        with evaluation_mode(self.model):
            return self.logits(ids).double().log_softmax(-1)


def _to_words(seen: Seen, name: str, row: int, columns: list[list[int]]) -> Tensor:
    """The weights (heads, words) of one query of a recorded layer."""
    calls = seen.calls(name)
    weights = torch.cat([call.weights(batch=0) for call in calls], -2)[:, row].double().cpu()  # (heads, keys)
    return torch.stack([weights[:, places].sum(-1) for places in columns], -1)


class _Causal(ProbedModel):
    """A model that predicts each token from those before it."""

    def log_prob(self, read: ReadText, word: Range) -> float:
        return self._sum(read, read.positions(word))

    def continuation(self, read: ReadText, word: Range) -> float:
        return self._sum(read, range(read.positions(word)[0], len(read.ids)))

    def _sum(self, read: ReadText, positions: Sequence[int]) -> float:
        if positions[0] == 0:
            raise OptionError(
                f"the model has no probability for the first token of {read.text!r}; put a word before it"
            )
        log_probs = self._log_probs(read.ids)
        return float(sum(log_probs[i - 1, read.ids[i]] for i in positions if read.spans[i] != (0, 0)))


class ProbedLanguageModel(_Causal):
    """A language model of regard."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        self.prompts = PromptEncoder(model, None)

    def read(self, text: str) -> ReadText:
        first, *ids = self.prompts.task(text, 0, 1).input_ids
        return ReadText(text, [first, *ids], [(0, 0), *self.prompts.tokenizer.spans(text)])

    def logits(self, ids: list[int]) -> Tensor:
        return self.model(torch.tensor([ids], device=self.model.device))[0]


class _Transformers(ProbedModel):
    """A model of Hugging Face with its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(model)
        self.tokenizer = tokenizer

    def read(self, text: str) -> ReadText:
        if not getattr(self.tokenizer, "is_fast", False):
            raise OptionError(
                "a bias probe needs the characters of each token; load a fast tokenizer (use_fast=True)"
            )
        encoded = self.tokenizer(text, return_offsets_mapping=True)
        return ReadText(text, list(encoded["input_ids"]), [tuple(span) for span in encoded["offset_mapping"]])

    def logits(self, ids: list[int]) -> Tensor:
        row = torch.tensor([ids], device=self.model.device)
        return self.model(input_ids=row, attention_mask=torch.ones_like(row)).logits[0]


class ProbedCausalTransformers(_Transformers, _Causal):
    """A causal model of Hugging Face, such as GPT-2."""


class ProbedMaskedTransformers(_Transformers):
    """A masked model of Hugging Face, such as BERT: the tokens of a word are masked and predicted."""

    def log_prob(self, read: ReadText, word: Range) -> float:
        places = read.positions(word)
        masked = list(read.ids)
        for i in places:
            masked[i] = self.tokenizer.mask_token_id
        log_probs = self._log_probs(masked)
        return float(sum(log_probs[i, read.ids[i]] for i in places))


def probed_model(model: Any, tokenizer: Any = None) -> ProbedModel:
    """The model with what a probe needs; `tokenizer` is for Hugging Face models."""
    if isinstance(model, ProbedModel):
        return model
    if isinstance(model, LanguageModel):
        return ProbedLanguageModel(model)
    what = getattr(model, "what", None)
    if isinstance(what, str):
        raise OptionError(
            f"a bias probe takes a language model, and this is {what}; train one with task: language"
        )
    name = type(model).__name__
    if not isinstance(model, nn.Module) or not hasattr(model, "get_input_embeddings"):
        raise OptionError(
            f"a bias probe takes a language model of regard or Hugging Face, or a folder of one, got {name}"
        )
    if tokenizer is None:
        raise OptionError("a Hugging Face model needs its tokenizer: bias_probe(model, texts, tokenizer=…)")
    if "MaskedLM" in name:
        return ProbedMaskedTransformers(model, tokenizer)
    if "CausalLM" in name or "LMHead" in name:
        return ProbedCausalTransformers(model, tokenizer)
    raise OptionError(f"a bias probe takes a causal or masked language model, and this is a {name}")
