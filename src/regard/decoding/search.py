"""One search for every decoder, recurrent or Transformer, and every strategy: start, step, reorder.

It asks of a writer: `start(memory, first)`, `best(tokens, carried, k)`, `step(tokens, carried)`, and of what it carries
`reorder(rows)`; with `joins`, also `join(other)`, and then new sentences enter a batch as others leave it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.tokenizer import EOS
from regard.decoding.beam import Beam
from regard.decoding.constraints import Constraints
from regard.decoding.required_words import RequiredWords
from regard.decoding.sampling import Sample
from regard.decoding.strategy import Choice, Groups, Hypothesis, Numbers, Rows, SearchTask, Strategy
from regard.errors import OptionError
from regard.models.autoregressive import log_probabilities
from regard.models.memory import Memory

__all__ = [
    "Beam",
    "Constraints",
    "Hypothesis",
    "RequiredWords",
    "Sample",
    "Search",
    "SearchTask",
    "Strategy",
    "search",
]

ROOM = 32  # words a row has room for at first


class Search:
    """Sentences being searched for, a step at a time. `end` is the word that ends a text; −1: none does."""

    def __init__(
        self, writer: Any, strategy: Strategy, rules: Constraints | None = None, end: int = EOS
    ) -> None:
        self.writer, self.strategy, self.rules, self.end = writer, strategy, rules or Constraints(), end
        self.shape = strategy.shape()
        self.carried: Any = None
        self.tokens = np.zeros(0, np.int64)  # the last word of each row
        self.groups = Groups.start([], self.shape.groups)
        self.rows = Rows(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, ROOM), np.int32))

    def __bool__(self) -> bool:
        """Whether anything is under way."""
        return bool(self.groups.tasks)

    def add(self, tasks: list[SearchTask], carried: Any, first: Tensor) -> None:
        """Sentences that begin: what the writer carries for them and their first tokens, one row each."""
        each = self.shape.groups
        groups, tokens = Groups.start(tasks, each), first.cpu().numpy()
        if each > 1:
            rows = np.repeat(np.arange(len(tasks)), each)
            carried, tokens = carried.reorder(torch.from_numpy(rows).to(self.writer.device)), tokens[rows]
        for task in tasks:
            task.groups = each
        notes = [self.strategy.note(task) for task in groups.tasks]
        new = Rows(
            np.arange(len(groups.tasks)) + len(self.groups.tasks),
            np.zeros(len(groups.tasks)),
            np.zeros((len(groups.tasks), ROOM), np.int32),
            None if notes and notes[0] is None else notes,
        )
        if self:
            self.rows, self.groups, self.carried = (
                self.rows.join(new),
                self.groups.join(groups),
                self.carried.join(carried),
            )
            self.tokens = np.concatenate([self.tokens, tokens])
        else:
            self.rows, self.groups, self.carried, self.tokens = new, groups, carried, tokens

    def step(self) -> list[SearchTask]:
        """One more word of every row. Gives the sentences that are done; cancelled ones leave first, without a text."""
        gone = self._drop_cancelled()
        if not self:
            return gone
        log_p, words = self._candidates()
        choice = self.strategy.choose(log_p, words, self.rows, self.groups, self.end)
        self.groups.length += 1
        self._put_away(choice.ended_row, choice.ended_score)
        over = self.strategy.closed(self.rows, self.groups, choice)
        at_limit = (self.groups.length >= self.groups.limit) & ~over
        group = self.rows.group[choice.row]
        if at_limit.any():
            self._cut_off(choice, at_limit[group])
        over |= at_limit | (np.bincount(group, minlength=len(over)) == 0)
        self._go_on(choice, ~over[group])
        return gone + (self._leave(over) if over.any() else [])

    def _drop_cancelled(self) -> list[SearchTask]:
        """Take the rows of cancelled sentences out of the batch; the others stay as they are."""
        tasks = {id(task): task for task in self.groups.tasks if task.cancelled is not None}
        gone = [task for task in tasks.values() if task.cancelled is not None and task.cancelled()]
        if not gone:
            return []
        for task in gone:
            task.groups, task.found = 0, []
        numbers = set(map(id, gone))
        over = np.array([id(task) in numbers for task in self.groups.tasks])
        pick = np.flatnonzero(~over[self.rows.group])
        notes = self.rows.notes and [self.rows.notes[i] for i in pick.tolist()]
        self.rows, self.tokens = self.rows.keep(pick), self.tokens[pick]
        self.rows.notes = notes
        self.rows.group = (np.cumsum(~over) - 1)[self.rows.group]
        self.groups = self.groups.keep(~over)
        if len(pick):
            self.carried = self.carried.reorder(torch.from_numpy(pick).to(self.writer.device))
        return gone

    def _candidates(self) -> tuple[Any, Numbers]:
        """log p and numbers of words that each row may go on with, (rows, candidates)."""
        tokens = torch.from_numpy(self.tokens).to(self.writer.device)
        forced = self._forced()
        top = self.shape.top
        if top is not None and not self.rules and not len(forced):
            log_p, words, self.carried = self.writer.best(tokens, self.carried, top)
            return self.strategy.draw(log_p, words, self.rows, self.groups)
        scores, self.carried = self.writer.step(tokens, self.carried)
        log_p = log_probabilities(scores)
        rows, words = forced.T.tolist()
        kept = log_p[rows, words].clone()
        if self.rules:
            self.rules.apply(log_p, self.rows.written, self.groups.length[self.rows.group], self.end)
        if rows:  # a prefix stands above the rules
            log_p[rows] = -torch.inf
            log_p[rows, words] = kept
        return self.strategy.draw(log_p, None, self.rows, self.groups)

    def _forced(self) -> Numbers:
        """Rows whose next word is given, and the word."""
        length = self.groups.length.tolist()
        words = {
            i: t.prefix[n]
            for i, (t, n) in enumerate(zip(self.groups.tasks, length, strict=True))
            if len(t.prefix) > n
        }
        found = (
            [(row, words[group]) for row, group in enumerate(self.rows.group.tolist()) if group in words]
            if words
            else []
        )
        return np.array(found, np.int64).reshape(-1, 2)

    def _put_away(self, rows: Numbers, scores: Any) -> None:
        """Texts that end at this step."""
        for row, log_p in zip(rows.tolist(), scores.tolist(), strict=True):
            group = int(self.rows.group[row])
            length = int(self.groups.length[group])  # the end mark counted
            text = self.rows.written[row, : length - 1].tolist()
            found = Hypothesis(
                text, log_p, self.strategy.rank(log_p, length), True, group=int(self.groups.nth[group])
            )
            self.groups.tasks[group].found.append(found)
            self.groups.ended[group] += 1

    def _cut_off(self, choice: Choice, here: Any) -> None:
        """At the limit the best texts under way stand in for those that did not end."""
        for at in np.flatnonzero(here).tolist():
            row, log_p = int(choice.row[at]), float(choice.score[at])
            group = int(self.rows.group[row])
            task, length = self.groups.tasks[group], int(self.groups.length[group])
            if self.groups.ended[group] < self.shape.width and self.strategy.whole(
                task, choice.notes and choice.notes[at]
            ):
                text = [*self.rows.written[row, : length - 1].tolist(), int(choice.word[at])]
                nth = int(self.groups.nth[group])
                task.found.append(
                    Hypothesis(text, log_p, self.strategy.rank(log_p, length), False, group=nth)
                )
                self.groups.ended[group] += 1

    def _go_on(self, choice: Choice, stay: Any) -> None:
        """The rows become those that were chosen and whose groups stay."""
        pick, words = choice.row[stay], choice.word[stay]
        if not len(pick):
            self.rows = self.rows.keep(pick)
            return
        if len(pick) != len(self.tokens) or (pick != np.arange(len(pick))).any():
            self.carried = self.carried.reorder(torch.from_numpy(pick).to(self.writer.device))
            self.rows = self.rows.keep(pick)
        place = self.groups.length[self.rows.group] - 1
        if place.max() >= self.rows.written.shape[1]:
            self.rows.written = np.pad(self.rows.written, ((0, 0), (0, self.rows.written.shape[1])))
        self.rows.written[np.arange(len(pick)), place] = words
        self.rows.score = choice.score[stay]
        if choice.notes is not None:
            self.rows.notes = [choice.notes[i] for i in np.flatnonzero(stay).tolist()]
        self.tokens = words

    def _leave(self, over: Any) -> list[SearchTask]:
        """Groups that are over leave, and with its last group a sentence."""
        done = []
        for group in np.flatnonzero(over).tolist():
            task = self.groups.tasks[group]
            task.groups -= 1
            if task.groups:
                continue
            if not task.found:
                raise OptionError(
                    f"no text of at most {task.limit} words keeps the rules for sentence {task.index + 1}; "
                    "allow a longer one, or ask for less"
                )
            task.found = self.strategy.order(task.found)
            done.append(task)
        self.rows.group = (np.cumsum(~over) - 1)[self.rows.group]
        self.groups = self.groups.keep(~over)
        return done


@torch.inference_mode()
def search(
    model: Any, memory: Memory | None, first: Tensor, limits: list[int], strategy: Strategy
) -> list[list[Hypothesis]]:
    """Write on from `first` (batch,), at most `limits` words each: the texts of each sentence, as the strategy orders them."""
    tasks = [SearchTask(limit, index=i) for i, limit in enumerate(limits)]
    under_way = Search(model, strategy)
    under_way.add(tasks, model.start(memory, first), first)
    while under_way:
        under_way.step()
    return [task.found for task in tasks]
