"""The search of a Hugging Face model: regard's beam search over its decoder, which can show its tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import ForcedEOSTokenLogitsProcessor, LogitNormalization, LogitsProcessorList

from regard.decoding.beam import Beam
from regard.decoding.constraints import TokenConstraints, Tokens
from regard.decoding.search import Search
from regard.decoding.strategy import Hypothesis, Integers, SearchTask
from regard.errors import OptionError
from regard.explorer.run_job import Job
from regard.serving.http_errors import client_left

LEFT_OUT = (ForcedEOSTokenLogitsProcessor, LogitNormalization)  # log p are those of the model itself


@dataclass(frozen=True)
class CachedTokens:
    """Decoder state: the tokens so far, (rows, T), and the key/value cache of the model, if it has one."""

    ids: Tensor
    cache: Any = None

    def reorder(self, rows: Tensor) -> CachedTokens:
        if self.cache is not None:
            self.cache.reorder_cache(rows)
        return replace(self, ids=self.ids[rows])


class HuggingFaceDecoder:
    """The decoder of a Hugging Face model as `Search` steps it; `encoded` is the output of the encoder."""

    can_join = False

    def __init__(self, model: Any, encoded: Any) -> None:
        self.model, self.encoded, self.device = model, encoded, model.device

    def step(self, tokens: Tensor, state: CachedTokens) -> tuple[Tensor, CachedTokens]:
        """Scores of the next token, (rows, vocabulary), after the tokens of the state and one more."""
        ids = torch.cat([state.ids, tokens[:, None]], -1)
        unread = ids if state.cache is None else ids[:, -1:]
        inputs: dict[str, Any] = {"input_ids": unread}
        if self.encoded is not None:
            rows = self.encoded.last_hidden_state.expand(len(ids), -1, -1)
            inputs = {"decoder_input_ids": unread, "encoder_outputs": (rows,)}
        output = self.model(**inputs, past_key_values=state.cache, use_cache=True, return_dict=True)
        return output.logits[:, -1].float(), CachedTokens(ids, getattr(output, "past_key_values", None))


@dataclass(frozen=True)
class ProcessedScores(TokenConstraints):
    """The logits processors of a generation config (forbidden tokens, no repeated n-grams, …).

    Several end tokens count as one, the first, with the probability of the likeliest.
    """

    processors: Any = None
    read: Tensor | None = None  # what the decoder read before the search, (1, T)
    ends: tuple[int, ...] = ()

    @property
    def filters_tokens(self) -> bool:
        return True

    def apply(self, log_p: Tensor, tokens: Tokens, length: Integers, end: int = -1) -> None:
        assert self.read is not None
        written = torch.from_numpy(tokens[:, : int(length[0])]).to(self.read)  # (rows, T)
        log_p.copy_(self.processors(torch.cat([self.read.expand(len(written), -1), written], -1), log_p))
        if len(self.ends) > 1:
            best = log_p[:, self.ends].amax(-1)
            log_p[:, self.ends] = -torch.inf
            log_p[:, end] = best


class HuggingFaceSearch(Search):
    """The search over all tokens of the model: ids 0 and 1 are not PAD and BOS as in our vocabularies."""

    @staticmethod
    def log_probabilities(scores: Tensor) -> Tensor:
        return scores.log_softmax(-1)


def search(
    model: Any, inputs: dict[str, Tensor], job: Job, strategy: Beam, ends: Sequence[int], longest: int
) -> list[Hypothesis]:
    """Search with the model's own generation config; the best hypothesis first, all start with the prefix."""
    if len(job.prefix) > longest:
        raise OptionError(
            f"{len(job.prefix)} tokens are forced, and the output has room for {longest}; force fewer"
        )
    task = SearchTask(longest, prefix=list(job.prefix), cancelled=job.cancelled)

    def decode(model: Any, input_ids: Tensor, logits_processor: Any, **prepared: Any) -> Tensor:
        """The loop that `generate` calls with prepared inputs; input_ids are those of the decoder."""
        decoder = HuggingFaceDecoder(model, prepared.get("encoder_outputs"))
        processors = LogitsProcessorList(p for p in logits_processor if not isinstance(p, LEFT_OUT))
        scores = ProcessedScores(processors=processors, read=input_ids, ends=tuple(ends))
        running = HuggingFaceSearch(decoder, strategy, scores, ends[0] if ends else -1)
        running.add([task], CachedTokens(input_ids[:, :-1]), input_ids[:, -1])
        while running:
            running.step()
        return input_ids

    model.generate(
        **inputs,
        num_beams=1,
        num_return_sequences=1,
        do_sample=False,
        max_new_tokens=longest,
        max_length=None,
        custom_generate=decode,
    )
    if not task.hypotheses:
        raise client_left()
    return task.hypotheses


def check_prefix(tokenizer: Any, prefix: Sequence[int], vocabulary: int, ends: Sequence[int]) -> None:
    """Raise OptionError if one of these token ids cannot be forced."""
    for at, token in enumerate(prefix):
        if not 0 <= token < vocabulary or (token == tokenizer.pad_token_id and token not in ends):
            raise OptionError(f"token {token} cannot be forced; choose one that the search shows")
        if token in ends and at < len(prefix) - 1:
            raise OptionError("the end of the text can only be the last forced token")


def spell(tokenizer: Any, text: str, byte_level: bool, *, complete: bool = False) -> list[int]:
    """The tokens of a text that is forced on the output; `complete`: with its end token.

    Byte-level tokenizers mark the space before a word only where there is one.
    """
    if not text.strip():
        return []
    given = f" {text.strip()}" if byte_level and not complete else text.strip()
    tokens = list(tokenizer(text_target=given, add_special_tokens=complete)["input_ids"])
    if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in tokens:
        raise OptionError(f"{text.strip()[:40]!r} is not in the vocabulary of this model; force another word")
    return tokens
