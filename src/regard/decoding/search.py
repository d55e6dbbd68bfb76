"""One search for every decoder, recurrent or Transformer: start, step, reorder, and a beam of the best texts so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.tokenizer import BOS, EOS, PAD
from regard.errors import OptionError
from regard.models.memory import Memory
from regard.models.writer import Writer


@dataclass(frozen=True)
class Hypothesis:
    """A text that was found: its words without the end mark, log p of it, and the score it was ranked by."""

    tokens: list[int]
    log_p: float
    score: float
    ended: bool


@dataclass(frozen=True)
class Beam:
    """Keep the `size` best texts at each step; rank ended ones by log p / lengthᵃ with a = `length_penalty`. Size 1 is greedy."""

    size: int = 1
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise OptionError(f"beam must be a whole number of at least 1, got {self.size!r}")

    def rank(self, log_p: float, length: int) -> float:
        return log_p / max(1, length) ** self.length_penalty


@torch.inference_mode()
def search(model: Writer, memory: Memory | None, first: Tensor, limits: list[int], beam: Beam) -> list[list[Hypothesis]]:
    """Write on from `first` (batch,), at most `limits` words each; gives up to beam.size texts per sentence, best first."""
    size = beam.size
    alive = list(range(len(first)))  # the sentence of each group of `size` rows
    rows = torch.arange(len(first), device=first.device).repeat_interleave(size)
    carried = model.start(memory, first).reorder(rows)
    tokens = first.repeat_interleave(size)
    scores = torch.full((len(first), size), -torch.inf, device=first.device)
    scores[:, 0] = 0  # all rows of a sentence begin alike: only the first counts
    written = tokens.new_empty(len(tokens), 0)
    found: list[list[Hypothesis]] = [[] for _ in limits]
    for length in range(1, max(limits, default=0) + 1):
        logits, carried = model.step(tokens, carried)
        logits[:, [PAD, BOS]] = -torch.inf
        log_p = torch.log_softmax(logits.float() if logits.dtype != torch.float64 else logits, -1)
        vocab = log_p.shape[-1]
        every = (scores.to(log_p.dtype)[..., None] + log_p.view(len(alive), size, vocab)).flatten(1)
        best, at = every.topk(min(2 * size, every.shape[-1]), -1)  # of 2·size at most `size` end, so `size` go on
        beams, words = at // vocab, at % vocab
        base = torch.arange(len(alive), device=first.device)[:, None] * size
        _collect(found, alive, length, limits, beam, best, words, written[base + beams])
        ends = words == EOS
        order = ends.to(torch.int8).argsort(stable=True, dim=-1)[:, :size]  # those that go on, best first
        go = [i for i, s in enumerate(alive) if len(found[s]) < size and length < limits[s]]
        if not go:
            break
        pick = torch.tensor(go, device=first.device)
        scores = best.gather(-1, order).masked_fill(ends.gather(-1, order), -torch.inf)[pick]
        rows = (base + beams).gather(-1, order)[pick].flatten()
        tokens = words.gather(-1, order)[pick].flatten()
        written = torch.cat([written[rows], tokens[:, None]], -1)
        if size > 1 or len(go) < len(alive):
            carried = carried.reorder(rows)
        alive = [alive[i] for i in go]
    return [sorted(texts, key=lambda h: -h.score)[:size] for texts in found]


def _collect(
    found: list[list[Hypothesis]],
    alive: list[int],
    length: int,
    limits: list[int],
    beam: Beam,
    best: Tensor,
    words: Tensor,
    before: Tensor,
) -> None:
    """Put away texts that end here: those among the `size` best that chose the end mark, and all at the limit."""
    ends = (words == EOS).tolist()
    if not any(any(row[: beam.size]) for row in ends) and all(length < limits[s] for s in alive):
        return
    values, chosen, texts = best.tolist(), words.tolist(), before.tolist()
    for i, s in enumerate(alive):
        for j in range(beam.size):
            if values[i][j] == -torch.inf:
                continue
            if ends[i][j]:
                found[s].append(Hypothesis(texts[i][j], values[i][j], beam.rank(values[i][j], length), True))
            elif length == limits[s] and len(found[s]) < beam.size:
                text = [*texts[i][j], chosen[i][j]]
                found[s].append(Hypothesis(text, values[i][j], beam.rank(values[i][j], length), False))
