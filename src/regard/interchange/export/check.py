"""Is the exported model the same model? Both write greedily from the same beginnings; every word and its log p is compared."""

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

SENTENCES = 50
NEAR = 1e-4  # two best scores as close as this may change places: float32 adds up in another order elsewhere
FAR = 1e-3  # log p that differ by more than this are another model's

Model = Translator | LanguageModel


class UnequalError(RegardError):
    """An exported model that does not write what regard writes."""


class Runner(Protocol):
    """A model in another runtime. A prompt is x1 … xn EOS of a source, or BOS y1 … yn of a text to be continued."""

    def write(self, prompt: list[int], limit: int) -> list[int]:
        """Greedily at most `limit` words, without the end mark."""
        ...

    def score(self, prompt: list[int], words: list[int]) -> list[float]:
        """log p of each of these words."""
        ...


@dataclass(frozen=True)
class ForcedOutput:
    """What regard writes: the words with the end mark where it came, log p of each, and how far the second best was behind."""

    words: list[int]
    log_p: list[float]
    ahead: list[float]


@dataclass(frozen=True)
class Check:
    """How an export compares with regard on sample sentences."""

    sentences: int
    equal: int
    ties: int
    worst: float

    @property
    def passed(self) -> bool:
        return self.equal + self.ties == self.sentences and self.worst < FAR

    def __str__(self) -> str:
        ties = f", {self.ties} apart at a tie (two best scores within {NEAR:g})" if self.ties else ""
        equal = f"{self.equal} of {self.sentences} sample sentences equal word for word"
        return f"{equal}{ties}; largest difference of log p {self.worst:.1e}"


def check(model: Model, runner: Runner, prompts: Sequence[list[int]] | None = None) -> Check:
    """Compare on the sample, or on prompts that are given."""
    prompts = sample(model) if prompts is None else prompts
    equal, ties, worst = 0, 0, 0.0
    with track(len(prompts), "checking", "sentences") as bar:
        for prompt in prompts:
            limit = _limit(model, prompt)
            ours = write(model, prompt, limit)
            theirs = runner.write(prompt, limit)
            bare = [word for word in ours.words if word != EOS]
            if theirs == bare:
                equal += 1
            elif _tie(ours, theirs):
                ties += 1
            scores = runner.score(prompt, ours.words)
            worst = max([worst, *(abs(a - b) for a, b in zip(ours.log_p, scores, strict=True))])
            bar.advance()
    return Check(len(prompts), equal, ties, worst)


def require(model: Model, runner: Runner, name: str) -> Check:
    """`check`, and an error when the export is another model."""
    found = check(model, runner)
    if not found.passed:
        raise UnequalError(
            f"the model in {name} is not equal to regard's ({found}); nothing was kept, please report this"
        )
    return found


def sample(model: Model) -> list[list[int]]:
    """Sentences of the carried Tatoeba sample, English and German in turn, as this model takes them."""
    pairs = islice(corpora.find("tatoeba-sample").rows("test", "en", "de"), SENTENCES // 2)
    rows = [text for pair in pairs for text in pair]
    tokenizer = model.source_tokenizer if isinstance(model, Translator) else model.target_tokenizer
    encoded = tokenizer.encode_batch(rows)  # type: ignore[union-attr, operator]
    if isinstance(model, Translator):
        return [[*ids[: _room(model, "encoder") - 1], EOS] for ids in encoded]
    return [[BOS, *ids[: min(8, _room(model, "decoder") // 2)]] for ids in encoded]


def _limit(model: Model, prompt: list[int]) -> int:
    room = _room(model, "decoder")
    return (
        min(len(prompt) * 3 // 2 + 20, room) if isinstance(model, Translator) else min(20, room - len(prompt))
    )


def _room(model: Model, side: str) -> int:
    """How many positions there are: a learned table ends somewhere."""
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    spec = config[side]
    return spec["max_positions"] if spec.get("position") in ("learned", "learned-norm") else 1 << 30


@torch.inference_mode()
def write(model: Model, prompt: list[int], limit: int) -> ForcedOutput:
    """What regard itself writes, greedily, one sentence at a time and step by step."""
    memory, begun = None, prompt
    if isinstance(model, Translator):
        memory, begun = model.encode(torch.tensor([prompt]), torch.tensor([len(prompt)])), [BOS]
    carried = model.start(memory, torch.tensor(begun[:1]))
    for word in begun[:-1]:
        _, carried = model.step(torch.tensor([word]), carried)
    found, word = ForcedOutput([], [], []), begun[-1]
    while len(found.words) < limit and (not found.words or word != EOS):
        scores, carried = model.step(torch.tensor([word]), carried)
        scores[:, [PAD, BOS]] = -torch.inf
        best = torch.log_softmax(scores[0], -1).topk(2)
        word = int(best.indices[0])
        found.words.append(word)
        found.log_p.append(float(best.values[0]))
        found.ahead.append(float(best.values[0] - best.values[1]))
    return found


def _tie(ours: ForcedOutput, theirs: list[int]) -> bool:
    """Whether the two part where regard's two best words were as good as equal."""
    given = [*theirs, EOS]
    at = next((i for i, word in enumerate(ours.words) if i >= len(given) or given[i] != word), None)
    return at is not None and ours.ahead[at] < NEAR
