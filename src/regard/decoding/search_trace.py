"""Beam search that records its steps: which continuations were kept, which ended, which were pruned.

Tracing is a strategy of its own, so an ordinary search is not slowed down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from regard import arguments
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
)
from regard.errors import OptionError

KEPT, ENDED, PRUNED = "kept", "ended", "pruned"


@dataclass(frozen=True)
class TraceNode:
    """One continuation that a search considered; the path from the root is its hypothesis.

    Attributes:
        index: its place in `SearchTrace.nodes`.
        parent: index of the hypothesis that it continues; −1 for the root.
        token: token id; −1 for the root.
        step: number of tokens from the root.
        log_p: log probability of the path.
        score: the value that hypotheses are ranked by.
        rank: rank among the candidates of its step, from 0.
        status: "kept" (the search continued with it), "ended" (a finished hypothesis) or "pruned".
    """

    index: int
    parent: int
    token: int
    step: int
    log_p: float
    score: float
    rank: int
    status: str


@dataclass
class SearchTrace:
    """The tree of one search. `nodes[0]` is the root; a parent comes before its children."""

    nodes: list[TraceNode] = field(default_factory=list)

    def path(self, index: int) -> list[TraceNode]:
        """Return the nodes from the first token to this one."""
        path: list[TraceNode] = []
        while index > 0:
            path.append(self.nodes[index])
            index = self.nodes[index].parent
        return path[::-1]

    def tokens(self, index: int) -> list[int]:
        """Return the token ids of the hypothesis that ends at this node."""
        return [node.token for node in self.path(index)]

    def find(self, hypothesis: Hypothesis, end: int = EOS) -> list[int]:
        """Return the indices of the nodes of a result of this search; `end` is its end-of-sentence id."""
        children = {(n.parent, n.token): n.index for n in reversed(self.nodes) if n.status != PRUNED}
        path, node = [], 0
        for token in hypothesis.tokens + [end] * hypothesis.ended:
            node = children[node, token]
            path.append(node)
        return path


@dataclass(frozen=True)
class TracedBeam(Beam):
    """Beam search that records every step in `trace`; the results are those of `Beam`. For one sentence.

    >>> strategy = regard.decoding.TracedBeam(4)
    >>> translation = regard.translate("Where is my book?", "tatoeba-en-de-bahdanau", strategy=strategy)
    >>> [node.status for node in strategy.trace.nodes[1:6]]
    ['kept', 'kept', 'kept', 'kept', 'pruned']

    Args:
        pruned: how many of the best pruned candidates of a step are recorded.
        trace: the record; empty at first.
    """

    pruned: int = 4
    trace: SearchTrace = field(default_factory=SearchTrace, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.integer("pruned", self.pruned, 0)
        if self.groups > 1:
            raise OptionError(f"a TracedBeam has one group, got groups={self.groups}; use Beam for several")

    def shape(self) -> Shape:
        shape = super().shape()
        # More candidates than the search needs do not change its choice: it takes the best of them.
        return shape._replace(top=max(shape.top or 1, self.pruned + 1))

    def initial_state(self, task: SearchTask) -> int:
        if not self.trace.nodes:
            self.trace.nodes.append(TraceNode(0, -1, -1, 0, 0.0, 0.0, 0, KEPT))
        elif len(self.trace.nodes) > 1 or task.index:
            raise OptionError("a TracedBeam records one sentence; make one for each")
        return 0

    def choose(
        self, log_p: Floats, tokens: Integers, rows: SearchRows, groups: Groups, end: int = EOS
    ) -> Choice:
        choice = super().choose(log_p, tokens, rows, groups, end)
        assert rows.states is not None
        kept = set(zip(choice.rows.tolist(), choice.tokens.tolist(), strict=True))
        ended = set(choice.ended_rows.tolist())
        nodes: dict[tuple[int, int], int] = {}
        pruned = 0
        for rank, (row, token, total) in enumerate(_best_first(log_p, tokens, rows)):
            status = KEPT if (row, token) in kept else PRUNED
            if token == end and row in ended:
                status = ENDED
            pruned += status == PRUNED
            if status != PRUNED or pruned <= self.pruned:
                nodes[row, token] = self._add(rows.states[row], token, total, rank, status)
        chosen = zip(choice.rows.tolist(), choice.tokens.tolist(), strict=True)
        return choice._replace(states=[nodes[row, token] for row, token in chosen])

    def _add(self, parent: int, token: int, total: float, rank: int, status: str) -> int:
        nodes = self.trace.nodes
        step = nodes[parent].step + 1
        nodes.append(TraceNode(len(nodes), parent, token, step, total, self.score(total, step), rank, status))
        return len(nodes) - 1

    def with_required(self) -> Beam:
        raise OptionError("a TracedBeam has no required phrases; leave them out or use Beam")


def _best_first(log_p: Floats, tokens: Integers, rows: SearchRows) -> Iterator[tuple[int, int, float]]:
    """Yield row, token and log p of the path of the possible candidates, best first."""
    total = rows.log_p[:, None] + log_p  # (rows, candidates)
    for index in np.argsort(-total, axis=None, kind="stable").tolist():
        row, candidate = divmod(index, total.shape[1])
        if total[row, candidate] > -np.inf:
            yield row, int(tokens[row, candidate]), float(total[row, candidate])
