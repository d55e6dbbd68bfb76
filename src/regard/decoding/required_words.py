"""A beam whose texts must hold certain words: grid beam search (Hokamp & Liu 2017).

Texts compete with those that hold as many required words as they do. Each number of required words has a beam of its own, so
that a text is never thrown away for having said an unlikely word early, and at each step every row also tries the required
words it lacks. A phrase of several tokens counts token by token while it is written, and no longer once it is broken off.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.tokenizer import EOS
from regard.decoding.beam import Beam
from regard.decoding.strategy import (
    Choice,
    Groups,
    Hypothesis,
    Numbers,
    Reals,
    Rows,
    SearchTask,
    Shape,
    Strategy,
)

Progress = tuple[int, ...]  # tokens of each required phrase written so far; its length once it is complete


@dataclass(frozen=True)
class RequiredWords(Strategy):
    """`beam.size` texts for each number of required tokens; those that end hold them all. It goes on until no text under way can
    pass the worst of as many that ended, since texts that say the required words at once end early and are poor.
    """

    beam: Beam

    @property
    def width(self) -> int:
        return self.beam.size

    def shape(self) -> Shape:
        return Shape(1, self.width, None)

    def most_rows(self, task: SearchTask) -> int:
        """One beam for each number of required tokens, none to all."""
        return self.width * (1 + sum(map(len, task.required)))

    def rank(self, log_p: float, length: int) -> float:
        return self.beam.rank(log_p, length)

    def note(self, task: SearchTask) -> Progress:
        return (0,) * len(task.required)

    def draw(self, log_p: Tensor, words: Tensor | None, rows: Rows, groups: Groups) -> tuple[Reals, Numbers]:
        """The best words, and every word of a required phrase; only these change what a text holds, the rest compete alike."""
        asked = [sorted({w for phrase in task.required for w in phrase}) for task in groups.tasks]
        most = max(map(len, asked))
        extra = np.array([words + [EOS] * (most - len(words)) for words in asked], np.int64).reshape(
            len(asked), most
        )[rows.group]
        best, words = log_p.topk(min(self.width + 1 + most, log_p.shape[-1]), -1)
        more = log_p.gather(-1, torch.from_numpy(extra).to(log_p.device)).cpu().numpy().astype(np.float64)
        found = words.cpu().numpy()
        more[(extra[:, :, None] == found[:, None]).any(-1) | (extra == EOS)] = -np.inf  # no candidate twice
        return np.concatenate([best.cpu().numpy().astype(np.float64), more], 1), np.concatenate(
            [found, extra], 1
        )

    def choose(self, log_p: Reals, words: Numbers, rows: Rows, groups: Groups, end: int = EOS) -> Choice:
        assert rows.notes is not None
        total = rows.score[:, None] + log_p
        on: list[tuple[int, int, float, Progress]] = []
        over: list[tuple[int, float]] = []
        bounds = np.searchsorted(rows.group, np.arange(len(groups.tasks) + 1)).tolist()
        for task, start, stop in zip(groups.tasks, bounds[:-1], bounds[1:], strict=True):
            banks: dict[int, list[tuple[float, int, int, Progress]]] = {}
            whole = sum(map(len, task.required))
            for row in range(start, stop):
                for word, score in zip(words[row].tolist(), total[row].tolist(), strict=True):
                    if score == -np.inf or (word == end and sum(rows.notes[row]) < whole):
                        continue
                    held = rows.notes[row] if word == end else advance(task.required, rows.notes[row], word)
                    banks.setdefault(sum(held), []).append((score, row, word, held))
            for candidates in banks.values():
                ranked = heapq.nlargest(2 * self.width, candidates, key=lambda c: c[0])
                over += [(row, score) for score, row, word, _ in ranked[: self.width] if word == end]
                going = [(row, word, score, held) for score, row, word, held in ranked if word != end]
                on += going[: self.width]
        return Choice(
            np.array([o[0] for o in on], np.int64),
            np.array([o[1] for o in on], np.int64),
            np.array([o[2] for o in on], np.float64),
            np.array([o[0] for o in over], np.int64),
            np.array([o[1] for o in over], np.float64),
            [o[3] for o in on],
        )

    def whole(self, task: SearchTask, note: Progress) -> bool:
        return sum(note) == sum(map(len, task.required))

    def closed(self, rows: Rows, groups: Groups, choice: Choice) -> NDArray[np.bool_]:
        group = rows.group[choice.row]
        done = np.zeros(len(groups.tasks), bool)
        for i, task in enumerate(groups.tasks):
            if len(task.found) >= self.width and (group == i).any():
                worst = heapq.nlargest(self.width, (h.score for h in task.found))[-1]
                # log p only falls, and is divided by at most limitᵃ: no text under way can end with more than this.
                done[i] = self.rank(float(choice.score[group == i].max()), task.limit) <= worst
        return done

    def order(self, found: list[Hypothesis]) -> list[Hypothesis]:
        return self.beam.order(found)


def advance(required: list[list[int]], held: Progress, word: int) -> Progress:
    """The progress of each phrase after one more word: the longest of its beginnings that the text now ends with."""
    return tuple(
        n if n == len(phrase) else _step(phrase, n, word) for phrase, n in zip(required, held, strict=True)
    )


def _step(phrase: list[int], n: int, word: int) -> int:
    """One step of the Knuth-Morris-Pratt automaton of a phrase."""
    borders = _borders(tuple(phrase))
    while n and phrase[n] != word:
        n = borders[n - 1]
    return n + (phrase[n] == word)


@lru_cache(maxsize=1024)
def _borders(phrase: tuple[int, ...]) -> tuple[int, ...]:
    """For each beginning of a phrase the length of the longest proper prefix of it that is also its suffix."""
    found, n = [0], 0
    for word in phrase[1:]:
        while n and phrase[n] != word:
            n = found[n - 1]
        n += phrase[n] == word
        found.append(n)
    return tuple(found)
