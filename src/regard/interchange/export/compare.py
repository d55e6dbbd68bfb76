"""Compare a model in regard with the same model in another runtime: greedy outputs and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch

from regard.data import corpora
from regard.data.tokenizer import BOS, EOS, PAD
from regard.errors import RegardError
from regard.files.progress import track
from regard.models.language_model import LanguageModel
from regard.models.translator import Translator

SENTENCES = 50  # of the bundled Tatoeba sample
NEAR = 1e-4  # top two tokens within this may swap: other runtimes add float32 numbers in another order
MAX_DIFFERENCE = 1e-3  # largest tolerated difference of a token's log-probability

Model = Translator | LanguageModel


class UnequalError(RegardError):
    """A model whose outputs in the other runtime differ from those in regard."""


class Runner(Protocol):
    """A model in another runtime.

    A prompt is `x1 … xn EOS` for a translator (the source) and `BOS y1 … yn` for a language model.
    """

    def generate(self, prompt: list[int], limit: int) -> list[int]:
        """Generate at most `limit` tokens greedily and return them without EOS."""
        ...

    def log_probs(self, prompt: list[int], tokens: list[int]) -> list[float]:
        """Return the log-probability of each of these output tokens."""
        ...


@dataclass(frozen=True)
class GreedyOutput:
    """Greedy output of regard.

    Attributes:
        tokens: with EOS if it was reached.
        log_probs: of the tokens.
        margins: difference of each log-probability to that of the second best token.
    """

    tokens: list[int]
    log_probs: list[float]
    margins: list[float]


@dataclass(frozen=True)
class RuntimeComparison:
    """Result of comparing two runtimes on sample sentences.

    `near_ties` counts sentences that first differ where the top two tokens were within NEAR of each other.
    """

    sentences: int
    equal: int
    near_ties: int
    max_difference: float  # of a token's log-probability

    @property
    def passed(self) -> bool:
        return self.equal + self.near_ties == self.sentences and self.max_difference < MAX_DIFFERENCE

    def __str__(self) -> str:
        ties = (
            f", {self.near_ties} with a near-tie (top two tokens within {NEAR:g})" if self.near_ties else ""
        )
        equal = f"{self.equal} of {self.sentences} sample sentences with identical tokens"
        return f"{equal}{ties}; largest difference of a log-probability {self.max_difference:.1e}"


def compare(model: Model, runner: Runner, prompts: Sequence[list[int]] | None = None) -> RuntimeComparison:
    """Compare greedy outputs and log-probabilities on `prompts`, or on the bundled sample."""
    prompts = sample_prompts(model) if prompts is None else prompts
    equal, near_ties, difference = 0, 0, 0.0
    with track(len(prompts), "checking", "sentences") as progress:
        for prompt in prompts:
            limit = _max_length(model, prompt)
            ours = greedy(model, prompt, limit)
            theirs = runner.generate(prompt, limit)
            if theirs == [token for token in ours.tokens if token != EOS]:
                equal += 1
            elif _differs_at_near_tie(ours, theirs):
                near_ties += 1
            log_probs = runner.log_probs(prompt, ours.tokens)
            difference = max(
                [difference, *(abs(a - b) for a, b in zip(ours.log_probs, log_probs, strict=True))]
            )
            progress.advance()
    return RuntimeComparison(len(prompts), equal, near_ties, difference)


def require_equal(model: Model, runner: Runner, runtime: str) -> RuntimeComparison:
    """Compare, and raise UnequalError if the outputs differ."""
    comparison = compare(model, runner)
    if not comparison.passed:
        raise UnequalError(
            f"the model in {runtime} does not give regard's outputs ({comparison}); "
            "nothing was kept, please report this"
        )
    return comparison


def sample_prompts(model: Model) -> list[list[int]]:
    """Encode sentences of the bundled Tatoeba sample, alternately English and German, as prompts."""
    pairs = islice(corpora.find("tatoeba-sample").rows("test", "en", "de"), SENTENCES // 2)
    texts = [text for pair in pairs for text in pair]
    tokenizer = model.source_tokenizer if isinstance(model, Translator) else model.target_tokenizer
    if codes := tokenizer.languages:  # type: ignore[union-attr]
        texts = [f">>{codes[i % len(codes)]}<< {text}" for i, text in enumerate(texts)]
    encoded = tokenizer.encode_batch(texts)  # type: ignore[union-attr, operator]
    if isinstance(model, Translator):
        return [[*ids[: _max_positions(model, "encoder") - 1], EOS] for ids in encoded]
    return [[BOS, *ids[: min(8, _max_positions(model, "decoder") // 2)]] for ids in encoded]


@torch.inference_mode()
def greedy(model: Model, prompt: list[int], limit: int) -> GreedyOutput:
    """Generate greedily with regard, one sentence at a time, one step at a time."""
    memory, given = None, prompt
    if isinstance(model, Translator):
        memory, given = model.encode(torch.tensor([prompt]), torch.tensor([len(prompt)])), [BOS]
    state = model.start(memory, torch.tensor(given[:1]))
    for token in given[:-1]:
        _, state = model.step(torch.tensor([token]), state)
    output, token = GreedyOutput([], [], []), given[-1]
    while len(output.tokens) < limit and (not output.tokens or token != EOS):
        scores, state = model.step(torch.tensor([token]), state)  # (1, vocabulary)
        scores[:, [PAD, BOS]] = -torch.inf
        best = torch.log_softmax(scores[0], -1).topk(2)
        token = int(best.indices[0])
        output.tokens.append(token)
        output.log_probs.append(float(best.values[0]))
        output.margins.append(float(best.values[0] - best.values[1]))
    return output


def _differs_at_near_tie(ours: GreedyOutput, theirs: list[int]) -> bool:
    """True if the outputs first differ at a step where our top two tokens were within NEAR of each other."""
    ended = [*theirs, EOS]
    first = next((i for i, token in enumerate(ours.tokens) if i >= len(ended) or ended[i] != token), None)
    return first is not None and ours.margins[first] < NEAR


def _max_length(model: Model, prompt: list[int]) -> int:
    positions = _max_positions(model, "decoder")
    if isinstance(model, Translator):
        return min(len(prompt) * 3 // 2 + 20, positions)
    return min(20, positions - len(prompt))


def _max_positions(model: Model, side: str) -> int:
    """Number of positions; only learned position embeddings bound it."""
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    spec = config[side]
    return spec["max_positions"] if spec.get("position") in ("learned", "learned-norm") else 1 << 30
