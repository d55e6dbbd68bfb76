"""Grid beam search (Hokamp & Liu 2017): beam search for outputs that contain required phrases.

Hypotheses compete with those that contain as many required tokens. Each number of required tokens has a beam
of its own, so a hypothesis is not dropped because it contains an unlikely required token early. At each step
every row also tries the required tokens that it lacks. The tokens of a phrase count while the phrase is being
generated, and no longer once it is broken off.
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
    Floats,
    Groups,
    Hypothesis,
    Integers,
    SearchRows,
    SearchTask,
    Shape,
    Strategy,
)

Progress = tuple[int, ...]  # number of generated tokens of each required phrase


@dataclass(frozen=True)
class GridBeam(Strategy):
    """A beam of `beam.size` rows for each number of required tokens; only complete hypotheses end.

    The search continues until no row can score better than the worst of `beam.size` ended hypotheses, because
    hypotheses that begin with the required phrases end early and are poor.
    """

    beam: Beam

    @property
    def width(self) -> int:
        return self.beam.size

    def shape(self) -> Shape:
        return Shape(1, self.width, None)

    def max_rows(self, task: SearchTask) -> int:
        """One beam for each number of required tokens, from 0 to all."""
        return self.width * (1 + sum(map(len, task.required)))

    def score(self, log_p: float, length: int) -> float:
        return self.beam.score(log_p, length)

    def initial_state(self, task: SearchTask) -> Progress:
        return (0,) * len(task.required)

    def candidates(
        self, log_p: Tensor, tokens: Tensor | None, rows: SearchRows, groups: Groups
    ) -> tuple[Floats, Integers]:
        """Return the best tokens, and every token of a required phrase."""
        required = [sorted({t for phrase in task.required for t in phrase}) for task in groups.tasks]
        most = max(map(len, required))
        padded = [ids + [EOS] * (most - len(ids)) for ids in required]
        extra = np.array(padded, np.int64).reshape(len(required), most)[rows.group]  # (rows, most)
        best, best_ids = log_p.topk(min(self.width + 1 + most, log_p.shape[-1]), -1)
        ids = best_ids.cpu().numpy()
        extra_log_p = (
            log_p.gather(-1, torch.from_numpy(extra).to(log_p.device)).cpu().numpy().astype(np.float64)
        )
        # A token that is already among the best is no second candidate.
        extra_log_p[(extra[:, :, None] == ids[:, None]).any(-1) | (extra == EOS)] = -np.inf
        best_log_p = best.cpu().numpy().astype(np.float64)
        return np.concatenate([best_log_p, extra_log_p], 1), np.concatenate([ids, extra], 1)

    def choose(
        self, log_p: Floats, tokens: Integers, rows: SearchRows, groups: Groups, end: int = EOS
    ) -> Choice:
        assert rows.states is not None
        total = rows.log_p[:, None] + log_p
        continued: list[tuple[int, int, float, Progress]] = []
        ended: list[tuple[int, float]] = []
        bounds = np.searchsorted(rows.group, np.arange(len(groups.tasks) + 1)).tolist()
        for task, start, stop in zip(groups.tasks, bounds[:-1], bounds[1:], strict=True):
            beams: dict[int, list[tuple[float, int, int, Progress]]] = {}
            required = sum(map(len, task.required))
            for row in range(start, stop):
                state = rows.states[row]
                for token, value in zip(tokens[row].tolist(), total[row].tolist(), strict=True):
                    if value == -np.inf or (token == end and sum(state) < required):
                        continue
                    new_state = state if token == end else advance(task.required, state, token)
                    beams.setdefault(sum(new_state), []).append((value, row, token, new_state))
            for candidates in beams.values():
                ranked = heapq.nlargest(2 * self.width, candidates, key=lambda c: c[0])
                ended += [(row, value) for value, row, token, _ in ranked[: self.width] if token == end]
                unfinished = [
                    (row, token, value, state) for value, row, token, state in ranked if token != end
                ]
                continued += unfinished[: self.width]
        return Choice(
            np.array([c[0] for c in continued], np.int64),
            np.array([c[1] for c in continued], np.int64),
            np.array([c[2] for c in continued], np.float64),
            np.array([e[0] for e in ended], np.int64),
            np.array([e[1] for e in ended], np.float64),
            [c[3] for c in continued],
        )

    def is_complete(self, task: SearchTask, state: Progress) -> bool:
        return sum(state) == sum(map(len, task.required))

    def finished(self, rows: SearchRows, groups: Groups, choice: Choice) -> NDArray[np.bool_]:
        group = rows.group[choice.rows]
        finished = np.zeros(len(groups.tasks), bool)
        for i, task in enumerate(groups.tasks):
            if len(task.hypotheses) >= self.width and (group == i).any():
                worst = heapq.nlargest(self.width, (h.score for h in task.hypotheses))[-1]
                # log p only decreases, and is divided by at most max_lengthᵃ: no row can end with a better
                # score.
                bound = self.score(float(choice.log_p[group == i].max()), task.max_length)
                finished[i] = bound <= worst
        return finished

    def sort(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        return self.beam.sort(hypotheses)


def advance(required: list[list[int]], state: Progress, token: int) -> Progress:
    """Return the progress after one more token: of each phrase the longest prefix that ends the output."""
    return tuple(
        n if n == len(phrase) else _step(phrase, n, token) for phrase, n in zip(required, state, strict=True)
    )


def _step(phrase: list[int], n: int, token: int) -> int:
    """Take one step of the Knuth-Morris-Pratt automaton of a phrase."""
    borders = _borders(tuple(phrase))
    while n and phrase[n] != token:
        n = borders[n - 1]
    return n + (phrase[n] == token)


@lru_cache(maxsize=1024)
def _borders(phrase: tuple[int, ...]) -> tuple[int, ...]:
    """For each prefix of a phrase, return the length of its longest proper prefix that is also its suffix."""
    borders, n = [0], 0
    for token in phrase[1:]:
        while n and phrase[n] != token:
            n = borders[n - 1]
        n += phrase[n] == token
        borders.append(n)
    return tuple(borders)
