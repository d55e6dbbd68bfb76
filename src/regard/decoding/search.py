"""The search loop for every decoder, recurrent or Transformer, and every strategy.

A model provides `start(memory, first) → state`, `step(tokens, state) → scores, state`, `best(tokens, state,
k) → log p, tokens, state`, and its state provides `reorder(rows)`. If `model.can_join` is True the state also
provides `join(other)`, and new sentences enter a batch as others leave it. An engine has its torch model as
`model`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.tokenizer import EOS
from regard.decoding.constraints import TokenConstraints
from regard.decoding.strategy import (
    Choice,
    Floats,
    Groups,
    Hypothesis,
    Integers,
    SearchRows,
    SearchTask,
    Strategy,
)
from regard.errors import OptionError
from regard.models.autoregressive import log_probabilities

CAPACITY = 32  # tokens per row at first; doubled when full

Flags = NDArray[np.bool_]


class Search:
    """The search over a changing batch of sentences, one step at a time. `end` is the end-of-sentence id; −1:
    none.
    """

    log_probabilities = staticmethod(log_probabilities)  # of the scores of a step

    def __init__(
        self, model: Any, strategy: Strategy, constraints: TokenConstraints | None = None, end: int = EOS
    ) -> None:
        self.model, self.strategy, self.end = model, strategy, end
        self.constraints = constraints or TokenConstraints()
        self.shape = strategy.shape()
        self.state: Any = None  # of the decoder
        self.last_tokens = np.zeros(0, np.int64)  # of each row
        self.groups = Groups.start([], self.shape.groups)
        self.rows = SearchRows(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, CAPACITY), np.int32))

    def __bool__(self) -> bool:
        """Whether any sentence is being searched."""
        return bool(self.groups.tasks)

    def add(self, tasks: list[SearchTask], state: Any, first: Tensor) -> None:
        """Add sentences, with the decoder state and the first token of each."""
        groups_per_task = self.shape.groups
        groups, tokens = Groups.start(tasks, groups_per_task), first.cpu().numpy()
        if groups_per_task > 1:
            repeated = np.repeat(np.arange(len(tasks)), groups_per_task)
            state, tokens = state.reorder(self._on_device(repeated)), tokens[repeated]
        for task in tasks:
            task.open_groups = groups_per_task
        count = len(groups.tasks)
        states = [self.strategy.initial_state(task) for task in groups.tasks]
        new = SearchRows(
            np.arange(count) + len(self.groups.tasks),
            np.zeros(count),
            np.zeros((count, CAPACITY), np.int32),
            None if states and states[0] is None else states,
        )
        if not self:
            self.rows, self.groups, self.state, self.last_tokens = new, groups, state, tokens
            return
        self.rows, self.groups = self.rows.join(new), self.groups.join(groups)
        self.state = self.state.join(state)
        self.last_tokens = np.concatenate([self.last_tokens, tokens])

    def step(self) -> list[SearchTask]:
        """Extend every row by one token. Return the sentences that are finished or cancelled."""
        cancelled = self._remove_cancelled()
        if not self:
            return cancelled
        log_p, tokens = self._candidates()
        choice = self.strategy.choose(log_p, tokens, self.rows, self.groups, self.end)
        self.groups.length += 1
        self._store_ended(choice.ended_rows, choice.ended_log_p)
        finished = self.strategy.finished(self.rows, self.groups, choice)
        at_limit = (self.groups.length >= self.groups.max_length) & ~finished
        group = self.rows.group[choice.rows]
        if at_limit.any():
            self._store_cut_off(choice, at_limit[group])
        finished |= at_limit | (np.bincount(group, minlength=len(finished)) == 0)
        self._continue(choice, ~finished[group])
        return cancelled + (self._remove_finished(finished) if finished.any() else [])

    def _on_device(self, array: Integers) -> Tensor:
        return torch.from_numpy(array).to(self.model.device)

    def _remove_cancelled(self) -> list[SearchTask]:
        """Remove the rows of cancelled sentences from the batch; the others stay as they are."""
        tasks = {id(task): task for task in self.groups.tasks if task.cancelled is not None}
        cancelled = [task for task in tasks.values() if task.cancelled is not None and task.cancelled()]
        if not cancelled:
            return []
        for task in cancelled:
            task.open_groups, task.hypotheses = 0, []
        ids = set(map(id, cancelled))
        removed = np.array([id(task) in ids for task in self.groups.tasks])
        remaining = np.flatnonzero(~removed[self.rows.group])
        states = self.rows.states and [self.rows.states[i] for i in remaining.tolist()]
        self.rows, self.last_tokens = self.rows.keep(remaining), self.last_tokens[remaining]
        self.rows.states = states
        self.rows.group = (np.cumsum(~removed) - 1)[self.rows.group]
        self.groups = self.groups.keep(~removed)
        if len(remaining):
            self.state = self.state.reorder(self._on_device(remaining))
        return cancelled

    def _candidates(self) -> tuple[Floats, Integers]:
        """Run the decoder; return log p and ids of the tokens that each row may continue with, (rows,
        candidates).
        """
        tokens = self._on_device(self.last_tokens)
        rows, forced = self._forced_tokens()
        top = self.shape.top
        if top is not None and not self.constraints.filters_tokens and not rows:
            log_p, best, self.state = self.model.best(tokens, self.state, top)
            return self.strategy.candidates(log_p, best, self.rows, self.groups)
        scores, self.state = self.model.step(tokens, self.state)
        log_p = self.log_probabilities(scores)  # (rows, vocabulary)
        log_p_of_forced = log_p[rows, forced].clone()
        if self.constraints.filters_tokens:
            lengths = self.groups.length[self.rows.group]
            self.constraints.apply(log_p, self.rows.tokens, lengths, self.end)
        if rows:  # a prefix has priority over the other constraints
            log_p[rows] = -torch.inf
            log_p[rows, forced] = log_p_of_forced
        return self.strategy.candidates(log_p, None, self.rows, self.groups)

    def _forced_tokens(self) -> tuple[list[int], list[int]]:
        """Return the rows that are still within their prefix, and the next token of each."""
        lengths = self.groups.length.tolist()
        forced = {
            group: task.prefix[length]
            for group, (task, length) in enumerate(zip(self.groups.tasks, lengths, strict=True))
            if len(task.prefix) > length
        }
        if not forced:
            return [], []
        rows = [row for row, group in enumerate(self.rows.group.tolist()) if group in forced]
        return rows, [forced[int(self.rows.group[row])] for row in rows]

    def _store_ended(self, rows: Integers, log_probabilities: Floats) -> None:
        """Store the hypotheses that end at this step."""
        for row, log_p in zip(rows.tolist(), log_probabilities.tolist(), strict=True):
            length = int(self.groups.length[self.rows.group[row]])  # with the end-of-sentence token
            self._store(row, self.rows.tokens[row, : length - 1].tolist(), log_p, ended=True)

    def _store_cut_off(self, choice: Choice, at_limit: Flags) -> None:
        """At the length limit, store the best rows in place of hypotheses that did not end."""
        for i in np.flatnonzero(at_limit).tolist():
            row = int(choice.rows[i])
            group = int(self.rows.group[row])
            task, length = self.groups.tasks[group], int(self.groups.length[group])
            complete = self.strategy.is_complete(task, choice.states and choice.states[i])
            if complete and self.groups.ended[group] < self.shape.width:
                tokens = [*self.rows.tokens[row, : length - 1].tolist(), int(choice.tokens[i])]
                self._store(row, tokens, float(choice.log_p[i]), ended=False)

    def _store(self, row: int, tokens: list[int], log_p: float, ended: bool) -> None:
        group = int(self.rows.group[row])
        score = self.strategy.score(log_p, int(self.groups.length[group]))
        hypothesis = Hypothesis(tokens, log_p, score, ended, group=int(self.groups.index[group]))
        self.groups.tasks[group].hypotheses.append(hypothesis)
        self.groups.ended[group] += 1

    def _continue(self, choice: Choice, kept: Flags) -> None:
        """Replace the rows by the chosen ones, except those of finished groups."""
        rows, tokens = choice.rows[kept], choice.tokens[kept]
        if not len(rows):
            self.rows = self.rows.keep(rows)
            return
        if len(rows) != len(self.last_tokens) or (rows != np.arange(len(rows))).any():
            self.state = self.state.reorder(self._on_device(rows))
            self.rows = self.rows.keep(rows)
        position = self.groups.length[self.rows.group] - 1
        if position.max() >= self.rows.tokens.shape[1]:
            self.rows.tokens = np.pad(self.rows.tokens, ((0, 0), (0, self.rows.tokens.shape[1])))
        self.rows.tokens[np.arange(len(rows)), position] = tokens
        self.rows.log_p = choice.log_p[kept]
        if choice.states is not None:
            self.rows.states = [choice.states[i] for i in np.flatnonzero(kept).tolist()]
        self.last_tokens = tokens

    def _remove_finished(self, finished: Flags) -> list[SearchTask]:
        """Remove finished groups; return the sentences whose last group this was."""
        done = []
        for group in np.flatnonzero(finished).tolist():
            task = self.groups.tasks[group]
            task.open_groups -= 1
            if task.open_groups:
                continue
            if not task.hypotheses:
                raise OptionError(
                    f"no output of at most {task.max_length} tokens satisfies the constraints of sentence "
                    f"{task.index + 1}; raise max_length or relax the constraints"
                )
            task.hypotheses = self.strategy.sort(task.hypotheses)
            done.append(task)
        self.rows.group = (np.cumsum(~finished) - 1)[self.rows.group]
        self.groups = self.groups.keep(~finished)
        return done


def torch_model(model: Any) -> Any:
    """Return the torch model of an engine, or a torch model itself."""
    return getattr(model, "model", model)
