"""A linear-chain conditional random field (Lafferty et al. 2001), and Viterbi decoding under constraints.

A tag sequence y over words with emissions s has the score start[y₁] + Σ s_t[y_t] + Σ A[y_(t−1), y_t] +
end[y_n]; its probability is e^score divided by the sum over all sequences (forward algorithm). `viterbi`
finds the best sequence. The rules of a tagging scheme are transition scores too, −∞ where it forbids a
transition, so that decoding never breaks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.data.tag_schemes import Scheme, scheme_of
from regard.errors import DataError

FORBIDDEN = -1e4  # score of a forbidden transition in training: −∞ has no gradient


class Transitions(NamedTuple):
    """Scores of the start, the transitions and the end of a sequence, for K tags."""

    start: Tensor  # (K,)
    between: Tensor  # (K, K): from, to
    end: Tensor  # (K,)

    def __add__(self, other: Transitions) -> Transitions:  # type: ignore[override]
        return Transitions(*(a + b for a, b in zip(self, other, strict=True)))

    def at_least(self, least: float) -> Transitions:
        """Clamp all scores from below."""
        return Transitions(*(scores.clamp(min=least) for scores in self))

    def like(self, emissions: Tensor) -> Transitions:
        """Convert to the device and dtype of the emissions."""
        return Transitions(*(scores.to(emissions) for scores in self))


def rules(tags: Sequence[str], scheme: Scheme | None = None) -> Transitions:
    """0 where the tagging scheme allows a transition, −∞ where not."""
    scheme = scheme_of(tags) if scheme is None else scheme
    allowed = (
        [scheme.legal(None, tag) for tag in tags],
        [[scheme.legal(before, after) for after in tags] for before in tags],
        [scheme.legal(tag, None) for tag in tags],
    )
    return Transitions(*(torch.where(torch.tensor(x, dtype=torch.bool), 0.0, -torch.inf) for x in allowed))


def zero_transitions(count: int) -> Transitions:
    """Zero scores: every transition is allowed."""
    return Transitions(torch.zeros(count), torch.zeros(count, count), torch.zeros(count))


class CRF(nn.Module):
    """Learned transition scores: K² + 2K parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.start, self.end = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.zeros(count))
        self.between = nn.Parameter(torch.zeros(count, count))

    @property
    def transitions(self) -> Transitions:
        return Transitions(self.start, self.between, self.end)


def path_score(emissions: Tensor, tags: Tensor, lengths: Tensor, transitions: Transitions) -> Tensor:
    """The score of given sequences, (batch, T, K), (batch, T), (batch,) → (batch,); 0 for empty sentences."""
    if not tags.shape[1]:
        return emissions.new_zeros(len(emissions))
    inside = torch.arange(tags.shape[1], device=tags.device) < lengths[:, None]  # (batch, T)
    tags = tags.masked_fill(~inside, 0)
    emitted = emissions.gather(-1, tags[..., None])[..., 0].masked_fill(~inside, 0)
    between = transitions.between[tags[:, :-1], tags[:, 1:]].masked_fill(~inside[:, 1:], 0)
    last = tags.gather(1, (lengths[:, None] - 1).clamp(min=0))[:, 0]
    return (
        emitted.sum(1) + between.sum(1) + transitions.start[tags[:, 0]] + transitions.end[last]
    ).masked_fill(lengths == 0, 0)


def log_sum(emissions: Tensor, lengths: Tensor, transitions: Transitions) -> Tensor:
    """log Σ e^score over all tag sequences: (batch, T, K), (batch,) → (batch,).

    By the forward algorithm, in O(T·K²).
    """
    if not emissions.shape[1]:
        return emissions.new_zeros(len(emissions))
    alpha = transitions.start + emissions[:, 0]  # (batch, K): log sum over prefixes that end with this tag
    for t in range(1, emissions.shape[1]):
        further = torch.logsumexp(alpha[:, :, None] + transitions.between, 1) + emissions[:, t]
        alpha = torch.where((t < lengths)[:, None], further, alpha)
    total = torch.logsumexp(alpha + transitions.end, 1)
    return total.masked_fill(lengths == 0, 0)  # an empty sentence has one sequence, of score 0


def negative_log_likelihood(
    emissions: Tensor, tags: Tensor, lengths: Tensor, transitions: Transitions
) -> Tensor:
    """−log p of given sequences, (batch,)."""
    return log_sum(emissions, lengths, transitions) - path_score(emissions, tags, lengths, transitions)


@torch.no_grad()
def viterbi(emissions: Tensor, lengths: Tensor, transitions: Transitions) -> tuple[Tensor, Tensor]:
    """The best tag sequence of each sentence, (batch, T), padded with 0, and its score, (batch,).

    emissions are (batch, T, K), lengths (batch,).
    """
    score = transitions.start + emissions[:, 0]
    previous: list[Tensor] = []  # for each step and tag, the best tag before it
    for t in range(1, emissions.shape[1]):
        best, best_previous = (score[:, :, None] + transitions.between).max(1)
        inside = (t < lengths)[:, None]
        score = torch.where(inside, best + emissions[:, t], score)
        previous.append(best_previous.masked_fill(~inside, -1))
    score, last = (score + transitions.end).max(1)
    path = [last]
    for best_previous in reversed(previous):
        before = best_previous.gather(1, path[-1][:, None])[:, 0]
        path.append(torch.where(before < 0, path[-1], before))  # after the end, the last tag is kept
    best = torch.stack(path[::-1], 1)  # (batch, T)
    after = torch.arange(best.shape[1], device=best.device) >= lengths[:, None]
    return best.masked_fill(after, 0), score


def check_rules(tags: Sequence[str], transitions: Transitions) -> None:
    """Raise a DataError if a sentence of one word has no well-formed tag, such as O, B- or S-."""
    best_single = (transitions.start + transitions.end).max()
    if not torch.isfinite(best_single):
        raise DataError(
            f"no single word can be tagged with {', '.join(tags)}; "
            "the training data must contain O, or spans of one word"
        )
