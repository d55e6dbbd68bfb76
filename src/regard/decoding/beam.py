"""Beam search, also diverse beam search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import EOS
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
from regard.errors import OptionError

MAX_SIZE = 1 << 16
MAX_PENALTY = 100.0  # lengthᵃ must stay finite


@dataclass(frozen=True)
class Beam(Strategy):
    """Beam search: keep the `size` best hypotheses at each step, until as many have ended.

    >>> strategy = regard.Beam(5, length_penalty=0.6)
    >>> regard.translate("Tom is happy.", "tatoeba-en-de-bahdanau", strategy=strategy)
    'Tom ist glücklich.'

    Args:
        size: number of hypotheses; 1 is greedy search.
        length_penalty: exponent a of the score log p / lengthᵃ, where the end-of-sentence token counts.
        coverage_penalty: β of the term β Σ_s log min(1, attention to source token s) (Wu et al. 2016, eq.
            14); it is added to the scores after the search.
        groups: number of groups of diverse beam search (Vijayakumar et al. 2018); it divides `size`. Groups
            choose one after the other.
        diversity: what a token costs for each earlier group that chose it at this step (Hamming diversity).
            The cost guides the choice only; scores stay log p.
    """

    size: int = 1
    length_penalty: float = 1.0
    coverage_penalty: float = 0.0
    groups: int = 1
    diversity: float = 0.5

    def __post_init__(self) -> None:
        arguments.integer("beam", self.size, 1, MAX_SIZE)
        arguments.integer("groups", self.groups, 1)
        arguments.number("length_penalty", self.length_penalty, 0, MAX_PENALTY)
        arguments.number("coverage_penalty", self.coverage_penalty, 0)
        arguments.number("diversity", self.diversity, 0)
        if self.size % self.groups:
            raise OptionError(
                f"a beam of {self.size} cannot be divided into {self.groups} equal groups; choose a divisor"
            )

    @property
    def width(self) -> int:
        """Rows per group."""
        return self.size // self.groups

    def shape(self) -> Shape:
        # A row contributes at most `width` tokens that continue and one that ends. With groups, the tokens
        # that earlier groups chose may all rank above these.
        top = 1 if self.size == 1 else self.width + 1 + (self.size if self.groups > 1 else 0)
        return Shape(self.groups, self.width, top)

    def score(self, log_p: float, length: int) -> float:
        return log_p / max(1, length) ** self.length_penalty

    def scores(self, log_p: Floats, length: Integers) -> Floats:
        """`score` of many hypotheses, equal to the last bit: numpy's power may round differently."""
        lengths = range(int(length.max(initial=0)) + 1)
        return log_p / np.array([float(max(1, n) ** self.length_penalty) for n in lengths])[length]

    def max_rows(self, task: SearchTask) -> int:
        return self.size

    def candidates(
        self, log_p: Tensor, tokens: Tensor | None, rows: SearchRows, groups: Groups
    ) -> tuple[Floats, Integers]:
        if tokens is None:
            log_p, tokens = log_p.topk(min(self.shape().top or 1, log_p.shape[-1]), -1)
        return log_p.cpu().numpy().astype(np.float64), tokens.cpu().numpy().astype(np.int64, copy=False)

    def choose(
        self, log_p: Floats, tokens: Integers, rows: SearchRows, groups: Groups, end: int = EOS
    ) -> Choice:
        if self.size == 1:
            return super().choose(log_p, tokens, rows, groups, end)
        count, k = len(groups.tasks), log_p.shape[1]
        first = np.searchsorted(rows.group, np.arange(count))
        slot = np.arange(len(rows.group)) - first[rows.group]
        total = np.full((count, self.width, k), -np.inf)
        total[rows.group, slot] = rows.log_p[:, None] + log_p
        token = np.zeros((count, self.width, k), np.int64)
        token[rows.group, slot] = tokens
        total, token = total.reshape(count, -1), token.reshape(count, -1)  # (groups, width · k)
        order = self._order(total, token, groups)
        total, token = np.take_along_axis(total, order, 1), np.take_along_axis(token, order, 1)
        row = first[:, None] + order // k
        possible, ends = total > -np.inf, token == end
        ended = possible & ends
        ended[:, self.width :] = False  # an end counts if it is among the best `width` candidates
        continued = possible & ~ends
        continued &= np.cumsum(continued, 1) <= self.width
        return Choice(row[continued], token[continued], total[continued], row[ended], total[ended])

    def _order(self, total: Floats, token: Integers, groups: Groups) -> Integers:
        """Return the indices of each group's best candidates, best first, (groups, 2 · width)."""
        kept = 2 * self.width  # at most `width` of them end
        if self.groups == 1:
            return np.argsort(-total, axis=1, kind="stable")[:, :kept]
        sentences: dict[int, int] = {}
        sentence = np.array([sentences.setdefault(id(task), len(sentences)) for task in groups.tasks])
        chosen = np.full((len(sentences), self.size), -1)  # tokens of earlier groups at this step
        order = np.zeros((len(total), min(kept, total.shape[1])), np.int64)
        for index in range(self.groups):
            of_index = np.flatnonzero(groups.index == index)
            repeats = (token[of_index][..., None] == chosen[sentence[of_index]][:, None]).sum(-1)
            order[of_index] = np.argsort(self.diversity * repeats - total[of_index], axis=1, kind="stable")[
                :, :kept
            ]
            best = np.take_along_axis(token[of_index], order[of_index][:, : self.width], 1)
            chosen[sentence[of_index][:, None], index * self.width + np.arange(best.shape[1])] = best
        return order

    def sort(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Best first and without duplicates: two groups may find the same hypothesis."""
        best_first = sorted(hypotheses, key=lambda h: -h.score)
        if self.groups == 1:
            return best_first[: self.size]
        distinct: dict[tuple[object, ...], Hypothesis] = {}
        for hypothesis in best_first:
            distinct.setdefault((hypothesis.ended, *hypothesis.tokens), hypothesis)
        return list(distinct.values())[: self.size]

    def rescore(self, model: Any, tasks: list[SearchTask]) -> None:
        """Add the coverage penalty."""
        if self.coverage_penalty:
            from regard.decoding.coverage import add_coverage_penalty

            add_coverage_penalty(model, tasks, self)

    def with_required(self) -> Strategy:
        if self.groups > 1:
            return super().with_required()
        from regard.decoding.grid_beam import GridBeam

        return GridBeam(self)

    def check_nbest(self, nbest: int | None) -> int:
        """Return `nbest`; 1 by default."""
        if nbest is not None and nbest > self.size:
            raise OptionError(f"nbest {nbest} needs a beam of at least {nbest}, got {self.size}")
        return 1 if nbest is None else nbest


GREEDY = Beam(1)


def default_beam(card: Any) -> Beam:
    """The search if the caller names none: `decoding: {beam: 4}` in the model's card.json, else greedy.

    The recipe in the card does not count: a beam that suits an evaluation may be too slow for every use.
    """
    decoding = card.get("decoding") if isinstance(card, dict) else None
    size = decoding.get("beam") if isinstance(decoding, dict) else None
    return Beam(size) if isinstance(size, int) and 1 <= size <= MAX_SIZE else GREEDY


def as_strategy(beam: Any, strategy: Any, default: Strategy = GREEDY) -> Strategy:
    """Check the arguments `beam` and `strategy` of a public function; the default if both are None."""
    if strategy is None:
        return default if beam is None else Beam(beam)
    arguments.instance("strategy", strategy, Strategy, "a strategy such as Beam(4) or Sample(top_p=0.9)")
    if beam is not None:
        raise OptionError(
            f"give beam or strategy, not both, got beam={arguments.quoted(beam)} and {strategy}"
        )
    return strategy
