"""Tags that belong together: a linear-chain conditional random field (Lafferty et al. 2001), and the best path under constraints.

A path of tags y over words with scores s (emissions) has the score start[y₁] + Σ s_t[y_t] + Σ A[y_(t−1), y_t] + end[y_n], and its
probability is e^score over the sum of all paths' (the forward algorithm). `viterbi` finds the best path. Rules are such scores too:
−∞ where a scheme of tags forbids a step, so that no path that breaks it can be found, whether the rest was learned or is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.data.tag_schemes import Scheme, scheme_of
from regard.errors import DataError

UNLIKELY = -1e4  # what a forbidden step scores in training: −∞ has no gradient


class Steps(NamedTuple):
    """What is added to a path beside its emissions, for K tags."""

    start: Tensor  # (K,)
    between: Tensor  # (K, K): from, to
    end: Tensor  # (K,)

    def __add__(self, other: Steps) -> Steps:  # type: ignore[override]
        return Steps(*(a + b for a, b in zip(self, other, strict=True)))

    def at_least(self, least: float) -> Steps:
        """The same with nothing below `least`."""
        return Steps(*(each.clamp(min=least) for each in self))

    def like(self, emissions: Tensor) -> Steps:
        return Steps(*(each.to(emissions) for each in self))


def rules(tags: Sequence[str], scheme: Scheme | None = None) -> Steps:
    """0 where a scheme lets one tag follow another, −∞ where not."""
    scheme = scheme_of(tags) if scheme is None else scheme
    allow = lambda rows: torch.tensor(rows, dtype=torch.bool)  # noqa: E731
    found = (
        allow([scheme.legal(None, tag) for tag in tags]),
        allow([[scheme.legal(before, after) for after in tags] for before in tags]),
        allow([scheme.legal(tag, None) for tag in tags]),
    )
    return Steps(*(torch.zeros(each.shape).masked_fill(~each, -torch.inf) for each in found))


def none(count: int) -> Steps:
    """Anything may follow anything."""
    return Steps(torch.zeros(count), torch.zeros(count, count), torch.zeros(count))


class CRF(nn.Module):
    """Scores of steps, learned: K² + 2K numbers."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.start, self.end = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.zeros(count))
        self.between = nn.Parameter(torch.zeros(count, count))

    @property
    def steps(self) -> Steps:
        return Steps(self.start, self.between, self.end)


def path_score(emissions: Tensor, tags: Tensor, lengths: Tensor, steps: Steps) -> Tensor:
    """The score of given paths: (batch, T, K), (batch, T), (batch,) → (batch,). A sentence without words has score 0."""
    if not tags.shape[1]:
        return emissions.new_zeros(len(emissions))
    inside = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]  # (batch, T)
    tags = tags.masked_fill(~inside, 0)
    each = emissions.gather(-1, tags[..., None])[..., 0].masked_fill(~inside, 0)
    between = steps.between[tags[:, :-1], tags[:, 1:]].masked_fill(~inside[:, 1:], 0)
    last = tags.gather(1, (lengths[:, None] - 1).clamp(min=0))[:, 0]
    return (each.sum(1) + between.sum(1) + steps.start[tags[:, 0]] + steps.end[last]).masked_fill(
        lengths == 0, 0
    )


def log_sum(emissions: Tensor, lengths: Tensor, steps: Steps) -> Tensor:
    """log Σ e^score over all paths, by the forward algorithm in O(T·K²): (batch, T, K), (batch,) → (batch,)."""
    if not emissions.shape[1]:
        return emissions.new_zeros(len(emissions))
    alpha = steps.start + emissions[:, 0]  # (batch, K): the log sum over paths that end here with this tag
    for t in range(1, emissions.shape[1]):
        further = torch.logsumexp(alpha[:, :, None] + steps.between, 1) + emissions[:, t]
        alpha = torch.where((t < lengths)[:, None], further, alpha)
    return torch.logsumexp(alpha + steps.end, 1).masked_fill(
        lengths == 0, 0
    )  # no words: one path, of score 0


def negative_log_likelihood(emissions: Tensor, tags: Tensor, lengths: Tensor, steps: Steps) -> Tensor:
    """−log p of given paths, (batch,)."""
    return log_sum(emissions, lengths, steps) - path_score(emissions, tags, lengths, steps)


@torch.no_grad()
def viterbi(emissions: Tensor, lengths: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
    """The best path of each sentence and its score: (batch, T, K), (batch,) → (batch, T), (batch,). Behind the end stands 0."""
    score = steps.start + emissions[:, 0]
    came: list[Tensor] = []  # for each step and tag the best tag before it
    for t in range(1, emissions.shape[1]):
        best, where = (score[:, :, None] + steps.between).max(1)
        inside = (t < lengths)[:, None]
        score = torch.where(inside, best + emissions[:, t], score)
        came.append(where.masked_fill(~inside, -1))
    score, last = (score + steps.end).max(1)
    path = [last]
    for where in reversed(came):
        before = where.gather(1, path[-1][:, None])[:, 0]
        path.append(torch.where(before < 0, path[-1], before))  # behind the end the last tag waits
    found = torch.stack(path[::-1], 1)
    return found.masked_fill(torch.arange(found.shape[1], device=found.device) >= lengths[:, None], 0), score


def check_rules(tags: Sequence[str], steps: Steps) -> None:
    """Stop when some sentence would have no well-formed tags at all; every tag set with O, or with B- or S-, has some for any."""
    alone = (steps.start + steps.end).max()
    if not torch.isfinite(alone):
        raise DataError(
            f"no single word can be tagged well with {', '.join(tags)}; the training text has to hold O, or spans of one word too"
        )
