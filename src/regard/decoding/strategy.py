"""The interface of search strategies, and the hypotheses they work on.

A strategy searches a sentence with one or more groups of rows; a row is one partial hypothesis. Beam search
is one group of `size` rows, diverse beam search several groups, and each sample is a group of one row. The
rows of a group are adjacent and equally long.

The bookkeeping of a step is done with numpy on the CPU, also if the model runs on a GPU: it is a few numbers
per row, and numpy is faster for such small arrays.
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
from regard.errors import OptionError

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass
class Hypothesis:
    """An output sequence of a search.

    Attributes:
        tokens: token ids without the end-of-sentence token.
        log_p: log probability under the model.
        score: the value that hypotheses are ranked by.
        ended: False if the length limit cut it off before its end-of-sentence token.
        text: the decoded tokens; filled in by `translate` and `generate`.
        attention: the attention maps; filled in by `translate(…, attention=True)`.
        group: index of the group that found it; for samples the index of the sample.
    """

    tokens: list[int]
    log_p: float
    score: float
    ended: bool
    text: str = ""
    attention: Any = None
    group: int = 0

    @property
    def all_tokens(self) -> list[int]:
        """The tokens, with the end-of-sentence token if there was one."""
        return [*self.tokens, EOS] if self.ended else self.tokens


@dataclass(eq=False)
class SearchTask:
    """One sentence to search: its input, its limits, and the hypotheses found.

    Attributes:
        max_length: maximum number of tokens of a hypothesis.
        input_ids: token ids of the source sentence or of the prompt.
        prefix: token ids that every hypothesis starts with.
        required: phrases (token ids) that every hypothesis contains.
        index: position among the sentences of the call, for error messages.
        cancelled: called at every step; when it returns True the sentence leaves the search without
            hypotheses.
        hypotheses: the result.
        open_groups: number of groups still being searched.
        sample_keys: keys of the random numbers, by sample; see `Sample`.
    """

    max_length: int
    input_ids: list[int] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    required: list[list[int]] = field(default_factory=list)
    index: int = 0
    cancelled: Callable[[], bool] | None = None
    hypotheses: list[Hypothesis] = field(default_factory=list)
    open_groups: int = 0
    sample_keys: dict[int, int] = field(default_factory=dict)


@dataclass
class Groups:
    """The groups being searched, as arrays with one entry per group."""

    tasks: list[SearchTask]
    index: Integers  # index of the group within its sentence
    max_length: Integers
    length: Integers  # tokens so far
    ended: Integers  # hypotheses that have ended

    @classmethod
    def start(cls, tasks: list[SearchTask], groups_per_task: int) -> Groups:
        """Create the groups of new sentences."""
        repeated = [task for task in tasks for _ in range(groups_per_task)]
        index = np.tile(np.arange(groups_per_task), len(tasks))
        max_length = np.array([task.max_length for task in repeated], np.int64)
        return cls(repeated, index, max_length, np.zeros_like(max_length), np.zeros_like(max_length))

    def keep(self, kept: NDArray[np.bool_]) -> Groups:
        """Select groups with a boolean array."""
        tasks = [task for task, keep in zip(self.tasks, kept.tolist(), strict=True) if keep]
        return Groups(tasks, self.index[kept], self.max_length[kept], self.length[kept], self.ended[kept])

    def join(self, other: Groups) -> Groups:
        """Append other groups."""
        names = ("index", "max_length", "length", "ended")
        arrays = [np.concatenate([getattr(self, name), getattr(other, name)]) for name in names]
        return Groups(self.tasks + other.tasks, *arrays)


@dataclass
class SearchRows:
    """The partial hypotheses being searched, as arrays with one entry per row."""

    group: Integers
    log_p: Floats
    tokens: NDArray[np.int32]  # (rows, capacity)
    states: list[Any] | None = None  # what the strategy stores for each row

    def keep(self, rows: Integers) -> SearchRows:
        """Select rows by index; the caller sets `states`."""
        return SearchRows(self.group[rows], self.log_p[rows], self.tokens[rows], self.states)

    def join(self, other: SearchRows) -> SearchRows:
        """Append other rows."""
        capacity = max(self.tokens.shape[1], other.tokens.shape[1])
        padded = [np.pad(x.tokens, ((0, 0), (0, capacity - x.tokens.shape[1]))) for x in (self, other)]
        states = None if self.states is None or other.states is None else self.states + other.states
        group, log_p = np.concatenate([self.group, other.group]), np.concatenate([self.log_p, other.log_p])
        return SearchRows(group, log_p, np.concatenate(padded), states)


class Choice(NamedTuple):
    """The outcome of a step: rows that continue with a token (by group, best first) and rows that end."""

    rows: Integers
    tokens: Integers
    log_p: Floats
    ended_rows: Integers
    ended_log_p: Floats
    states: list[Any] | None = None


class Shape(NamedTuple):
    """The size of a search: groups per sentence, rows per group, candidates per row (None: all tokens)."""

    groups: int
    width: int
    top: int | None


class Strategy(ABC):
    """How tokens are chosen at each step of a search.

    A strategy must define `shape`, `candidates` and `score`. The other methods have defaults that fit
    strategies with one row per group.
    """

    @abstractmethod
    def shape(self) -> Shape:
        """Return the rows and candidates that the search provides."""

    @abstractmethod
    def candidates(
        self, log_p: Tensor, tokens: Tensor | None, rows: SearchRows, groups: Groups
    ) -> tuple[Floats, Integers]:
        """Return the log probabilities and ids of the candidate tokens, (rows, candidates) each.

        The arguments `log_p` and `tokens` have the `shape().top` best tokens of each row. If `tokens` is
        None, `log_p` has all tokens, (rows, vocabulary).
        """

    @abstractmethod
    def score(self, log_p: float, length: int) -> float:
        """Return the value that the hypotheses of a sentence are ranked by."""

    def choose(
        self, log_p: Floats, tokens: Integers, rows: SearchRows, groups: Groups, end: int = EOS
    ) -> Choice:
        """Choose the rows of the next step; by default each row continues with its first candidate."""
        total, token = rows.log_p + log_p[:, 0], tokens[:, 0]
        possible, ends = total > -np.inf, token == end
        continued, ended = np.flatnonzero(possible & ~ends), np.flatnonzero(possible & ends)
        return Choice(continued, token[continued], total[continued], ended, total[ended])

    def finished(self, rows: SearchRows, groups: Groups, choice: Choice) -> NDArray[np.bool_]:
        """Return which groups need no more steps: by default those where `width` hypotheses have ended."""
        return groups.ended >= self.shape().width

    def sort(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Return the hypotheses of a sentence in the order of the result."""
        return hypotheses

    def max_rows(self, task: SearchTask) -> int:
        """Return an upper bound on the rows that a sentence occupies in a batch."""
        return self.shape().groups * self.shape().width

    def initial_state(self, task: SearchTask) -> Any:
        """Return what to store for the first row of a sentence; None if the strategy stores nothing."""
        return None

    def is_complete(self, task: SearchTask, state: Any) -> bool:
        """Return whether a hypothesis with this state may be returned when the length limit cuts it off."""
        return True

    def rescore(self, model: Any, tasks: list[SearchTask]) -> None:
        """Change scores and order of the hypotheses after the search; by default they stay."""
        return

    def with_required(self) -> Strategy:
        """Return the strategy for sentences with required phrases."""
        raise OptionError(
            f"constraints.required needs a beam without groups, got {type(self).__name__}; "
            "leave out the required words or use Beam(size)"
        )

    def check_nbest(self, nbest: int | None) -> int:
        """Return how many hypotheses per sentence the result has: all of them by default."""
        rows = self.shape().groups * self.shape().width
        if nbest is not None and nbest > rows:
            name = type(self).__name__
            raise OptionError(
                f"nbest {nbest} needs at least {nbest} hypotheses per sentence, and {name} gives {rows}"
            )
        return rows if nbest is None else nbest
