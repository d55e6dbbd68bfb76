"""Beam search: the best few texts at each step, in one group or in several that keep apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import EOS
from regard.decoding.strategy import Choice, Groups, Hypothesis, Numbers, Reals, Rows, Shape, Strategy
from regard.errors import OptionError

WIDEST = 1 << 16  # texts kept at a step
STEEPEST = 100.0  # of length penalties: lengthᵃ must stay a number


def whole(name: str, value: Any, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    arguments.integer(name, value, least)


def real(name: str, value: Any, least: float, most: float = math.inf, *, above: bool = False) -> None:
    """Refuse what is not a finite number from `least` (itself excluded with `above`) to `most`."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least or value > most or (above and value == least):
        edge = f"above {least:g}" if above else f"of at least {least:g}"
        raise OptionError(
            f"{name} must be a number {edge}{'' if most == math.inf else f' and at most {most:g}'}, got {value!r}"
        )


@dataclass(frozen=True)
class Beam(Strategy):
    """Keep the `size` best texts at each step, until as many have ended. Size 1 is greedy.

    Texts are ranked by log p / lengthᵃ, the end mark counted, with a = `length_penalty`; `coverage_penalty` β adds
    β Σ_s log min(1, attention to source word s) (Wu et al. 2016, eq. 14) to the score of what was found.

    With `groups` above 1 the beam is cut into groups that choose one after the other, each word at `diversity` less for every
    time that a group before chose it at this step (Vijayakumar et al. 2018, Hamming diversity). The penalty guides the choice
    alone: scores stay log p.
    """

    size: int = 1
    length_penalty: float = 1.0
    coverage_penalty: float = 0.0
    groups: int = 1
    diversity: float = 0.5

    def __post_init__(self) -> None:
        arguments.integer("beam", self.size, 1, WIDEST)
        whole("groups", self.groups, 1)
        real("length_penalty", self.length_penalty, 0, STEEPEST)
        real("coverage_penalty", self.coverage_penalty, 0)
        real("diversity", self.diversity, 0)
        if self.size % self.groups:
            raise OptionError(
                f"a beam of {self.size} cannot be cut into {self.groups} equal groups; choose groups that divide it"
            )

    @property
    def width(self) -> int:
        return self.size // self.groups

    def shape(self) -> Shape:
        # A row gives at most `width` texts that go on and one that ends; words chosen by other groups may all rank above.
        return Shape(
            self.groups,
            self.width,
            1 if self.size == 1 else self.width + 1 + (self.size if self.groups > 1 else 0),
        )

    def rank(self, log_p: float, length: int) -> float:
        return log_p / max(1, length) ** self.length_penalty

    def draw(self, log_p: Tensor, words: Tensor | None, rows: Rows, groups: Groups) -> tuple[Reals, Numbers]:
        if words is None:
            log_p, words = log_p.topk(min(self.shape().top or 1, log_p.shape[-1]), -1)
        return log_p.cpu().numpy().astype(np.float64), words.cpu().numpy().astype(np.int64, copy=False)

    def choose(self, log_p: Reals, words: Numbers, rows: Rows, groups: Groups, end: int = EOS) -> Choice:
        if self.size == 1:
            return super().choose(log_p, words, rows, groups, end)
        count, k = len(groups.tasks), log_p.shape[1]
        first = np.searchsorted(rows.group, np.arange(count))
        slot = np.arange(len(rows.group)) - first[rows.group]
        total = np.full((count, self.width, k), -np.inf)
        total[rows.group, slot] = rows.score[:, None] + log_p
        word = np.zeros((count, self.width, k), np.int64)
        word[rows.group, slot] = words
        total, word = total.reshape(count, -1), word.reshape(count, -1)  # (groups, candidates)
        order = self._order(total, word, groups)
        total, word = np.take_along_axis(total, order, 1), np.take_along_axis(word, order, 1)
        row = first[:, None] + order // k
        alive, ends = total > -np.inf, word == end
        over = alive & ends
        over[:, self.width :] = False  # an end counts when it is among the best `width`
        on = alive & ~ends
        on &= np.cumsum(on, 1) <= self.width
        return Choice(row[on], word[on], total[on], row[over], total[over])

    def _order(self, total: Reals, word: Numbers, groups: Groups) -> Numbers:
        """The places of each group's candidates, best first."""
        most = 2 * self.width  # at most `width` of them end
        if self.groups == 1:
            return np.argsort(-total, axis=1, kind="stable")[:, :most]
        places: dict[int, int] = {}
        sentence = np.array([places.setdefault(id(task), len(places)) for task in groups.tasks])
        chosen = np.full((len(places), self.size), -1)  # words of the groups before, at this step
        order = np.zeros((len(total), min(most, total.shape[1])), np.int64)
        for nth in range(self.groups):
            mine = np.flatnonzero(groups.nth == nth)
            again = (word[mine][..., None] == chosen[sentence[mine]][:, None]).sum(-1)
            order[mine] = np.argsort(self.diversity * again - total[mine], axis=1, kind="stable")[:, :most]
            best = np.take_along_axis(word[mine], order[mine][:, : self.width], 1)
            chosen[sentence[mine][:, None], nth * self.width + np.arange(best.shape[1])] = best
        return order

    def order(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """Best first, and each text once: two groups may find the same."""
        if len(found) < 2:
            return found
        different: dict[tuple[object, ...], Hypothesis] = {}
        for hypothesis in sorted(found, key=lambda h: -h.score):
            different.setdefault((hypothesis.ended, *hypothesis.tokens), hypothesis)
        return list(different.values())[: self.size]
