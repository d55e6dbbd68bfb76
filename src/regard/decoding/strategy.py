"""What a search asks of a strategy, such as a beam or a sample, and the rows it works on.

A sentence is searched for by one or more groups of rows; each row is a text under way. A beam is one group of `size` rows, a
diverse beam several, and each sample is a group of one row. Rows of a group stand together and have the same length.

The bookkeeping of a step is numpy on the CPU whatever the device of the model: it is a few numbers a row, and small arrays cost
less there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.tokenizer import EOS

Numbers = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass
class Hypothesis:
    """A text that was found: its words without the end mark, log p of it, the score it was ranked by, and whether it ended.

    A text that did not end was cut off by the length limit. `text` and `attention` are filled in by `translate`.
    """

    tokens: list[int]
    log_p: float
    score: float
    ended: bool
    text: str = ""
    attention: Any = None
    group: int = 0  # of those of its sentence: the number of a sample

    @property
    def whole(self) -> list[int]:
        """All that was written: the tokens, and the end mark if it came."""
        return [*self.tokens, EOS] if self.ended else self.tokens


@dataclass(eq=False)
class SearchTask:
    """A sentence to be searched for: how long it may become, what it must begin with and hold, and what was found."""

    limit: int
    given: list[int] = field(default_factory=list)  # the source, or a prompt: what samples of it are drawn by
    prefix: list[int] = field(default_factory=list)
    required: list[list[int]] = field(default_factory=list)
    index: int = 0
    cancelled: Callable[[], bool] | None = (
        None  # asked at every step; a sentence for which it is true leaves the search
    )
    found: list[Hypothesis] = field(default_factory=list)
    groups: int = 0  # still under way
    keys: dict[int, int] = field(default_factory=dict)  # of its samples


@dataclass
class Groups:
    """Groups under way, each of a sentence: how far they are, and how many of their texts have ended."""

    tasks: list[SearchTask]
    nth: Numbers  # the number of the group within its sentence
    limit: Numbers
    length: Numbers
    ended: Numbers

    @classmethod
    def start(cls, tasks: list[SearchTask], each: int) -> Groups:
        repeated = [task for task in tasks for _ in range(each)]
        limit = np.array([task.limit for task in repeated], np.int64)
        return cls(
            repeated, np.tile(np.arange(each), len(tasks)), limit, np.zeros_like(limit), np.zeros_like(limit)
        )

    def keep(self, stay: NDArray[np.bool_]) -> Groups:
        tasks = [task for task, kept in zip(self.tasks, stay.tolist(), strict=True) if kept]
        return Groups(tasks, self.nth[stay], self.limit[stay], self.length[stay], self.ended[stay])

    def join(self, other: Groups) -> Groups:
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("nth", "limit", "length", "ended"))
        return Groups(self.tasks + other.tasks, *map(np.concatenate, pairs))


@dataclass
class Rows:
    """Texts under way: the group, log p and words of each, and what the strategy noted about it."""

    group: Numbers
    score: Reals
    written: NDArray[np.int32]  # (rows, room)
    notes: list[Any] | None = None

    def keep(self, rows: Numbers) -> Rows:
        return Rows(self.group[rows], self.score[rows], self.written[rows], self.notes)

    def join(self, other: Rows) -> Rows:
        room = max(self.written.shape[1], other.written.shape[1])
        fit = lambda x: np.pad(x, ((0, 0), (0, room - x.shape[1])))  # noqa: E731
        notes = None if self.notes is None or other.notes is None else self.notes + other.notes
        return Rows(
            np.concatenate([self.group, other.group]),
            np.concatenate([self.score, other.score]),
            np.concatenate([fit(self.written), fit(other.written)]),
            notes,
        )


class Choice(NamedTuple):
    """What becomes of the rows at a step: those that go on with a word, by group and best first, and those that end."""

    row: Numbers
    word: Numbers
    score: Reals
    ended_row: Numbers
    ended_score: Reals
    notes: list[Any] | None = None


class Shape(NamedTuple):
    """Groups a sentence, texts a group, and how many best words of a row are enough to choose from; None: it takes all."""

    groups: int
    width: int
    top: int | None


class Strategy(ABC):
    """How words are chosen."""

    @abstractmethod
    def shape(self) -> Shape:
        """The rows and words that the search provides."""

    def most_rows(self, task: SearchTask) -> int:
        """Upper bound on the rows that a sentence takes in a batch."""
        return self.shape().groups * self.shape().width

    @abstractmethod
    def draw(self, log_p: Tensor, words: Tensor | None, rows: Rows, groups: Groups) -> tuple[Reals, Numbers]:
        """Candidates from log p of all words (words None) or of the best: log p and number, (rows, candidates)."""

    @abstractmethod
    def rank(self, log_p: float, length: int) -> float:
        """The score that texts of a sentence are ordered by."""

    def note(self, task: SearchTask) -> Any:
        """What to remember about a row that has no word yet; None: nothing, ever."""
        return None

    def choose(self, log_p: Reals, words: Numbers, rows: Rows, groups: Groups, end: int = EOS) -> Choice:
        """Of one candidate a row: it ends or goes on."""
        total, word = rows.score + log_p[:, 0], words[:, 0]
        alive, ends = total > -np.inf, word == end
        on, over = np.flatnonzero(alive & ~ends), np.flatnonzero(alive & ends)
        return Choice(on, word[on], total[on], over, total[over])

    def whole(self, task: SearchTask, note: Any) -> bool:
        """Whether a text may be handed out when the length limit cuts it off."""
        return True

    def closed(self, rows: Rows, groups: Groups, choice: Choice) -> NDArray[np.bool_]:
        """Which groups need no more steps: as many texts ended as were asked for."""
        return groups.ended >= self.shape().width

    def order(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """What was found for a sentence as it is handed out."""
        return found
