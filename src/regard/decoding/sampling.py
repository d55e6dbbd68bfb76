"""Sampling: draw each token from the model's distribution, optionally truncated (top-k, nucleus, min-p)."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard import arguments
from regard.decoding.strategy import (
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

# Below, log p / temperature overflows; above, all tokens are equally likely.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-4, 100.0
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Sample(Strategy):
    """Sampling: draw hypotheses token by token from p^(1/temperature).

    >>> strategy = regard.Sample(temperature=0.8, top_p=0.95, seed=1)
    >>> text = regard.generate("To be, or", "shakespeare-small", strategy=strategy)

    The samples of a text depend on the seed and the text only, not on the other texts of the call; a repeated
    text gives repeated samples. Scores are log p under the model itself, before temperature and truncation.

    Args:
        temperature: below 1 sharpens the distribution, above 1 flattens it.
        top_k: sample from the k most likely tokens; 0 is all.
        top_p: nucleus sampling (Holtzman et al. 2020): the smallest set of tokens whose probability reaches
            top_p.
        min_p: keep tokens with at least min_p times the probability of the best (Nguyen et al. 2024).
        count: number of samples per text.
        seed: drawn if None; the attribute `seed` then holds the drawn value.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    count: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        arguments.number("temperature", self.temperature, MIN_TEMPERATURE, MAX_TEMPERATURE)
        arguments.integer("top_k", self.top_k, 0)
        arguments.number("top_p", self.top_p, 0, 1)
        if self.top_p == 0:
            raise OptionError("top_p must be above 0 and at most 1, got 0; use top_k=1 for greedy search")
        arguments.number("min_p", self.min_p, 0, 1)
        arguments.integer("count", self.count, 1)
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbits(32))
        arguments.integer("seed", self.seed, 0, 1 << 256)

    def shape(self) -> Shape:
        return Shape(self.count, 1, self.top_k or None)

    def score(self, log_p: float, length: int) -> float:
        return log_p

    def candidates(
        self, log_p: Tensor, tokens: Tensor | None, rows: SearchRows, groups: Groups
    ) -> tuple[Floats, Integers]:
        """One candidate per row: the sampled token."""
        if tokens is None and self.top_k:  # constraints needed the whole vocabulary
            log_p, tokens = log_p.topk(min(self.top_k, log_p.shape[-1]), -1)
        uniform = torch.from_numpy(self.uniform(groups)[rows.group]).to(log_p.device)
        sampled = self.sample(log_p, uniform)[:, None]
        token = sampled if tokens is None else tokens.gather(-1, sampled)
        return log_p.gather(-1, sampled).cpu().numpy().astype(np.float64), token.cpu().numpy()

    def sample(self, log_p: Tensor, uniform: Tensor) -> Tensor:
        """Sample by inverting the cumulative distribution at `uniform` (rows,) in [0, 1); return columns of
        log_p.
        """
        p = torch.softmax(log_p.double() / self.temperature, -1)
        # Where constraints forbid every token any choice has log p −∞, and the search drops the row.
        impossible = (log_p == -torch.inf).all(-1)
        p = p.masked_fill(impossible[:, None], 0)
        order = None
        if self.top_p < 1:
            p, order = p.sort(dim=-1, descending=True, stable=True)
            p = p.masked_fill(p.cumsum(-1) - p >= self.top_p, 0)
        if self.min_p:
            p = p.masked_fill(p < self.min_p * p.amax(-1, keepdim=True), 0)
        cumulative = p.cumsum(-1)
        total = cumulative[:, -1]
        # Rounding must not reach beyond the last token.
        goal = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
        column = torch.searchsorted(cumulative, goal[:, None], right=True)
        column = column.masked_fill(impossible[:, None], 0)
        return (column if order is None else order.gather(-1, column))[:, 0]

    def uniform(self, groups: Groups) -> Floats:
        """Return a number in [0, 1) per group for this step: SplitMix64 (Steele et al. 2014) from the
        sample's key.
        """
        pairs = zip(groups.tasks, groups.index.tolist(), strict=True)
        with np.errstate(over="ignore"):
            x = np.array([self._key(task, index) for task, index in pairs], np.uint64)
            x = x + (groups.length.astype(np.uint64) + np.uint64(1)) * GOLDEN
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
        return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def sort(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """In the order of sampling: the first is a fair sample for every count."""
        return sorted(hypotheses, key=lambda h: h.group)

    def check_nbest(self, nbest: int | None) -> int:
        """Return `nbest`; all samples by default."""
        if nbest is not None and nbest > self.count:
            raise OptionError(f"nbest {nbest} needs at least {nbest} samples, got a count of {self.count}")
        return self.count if nbest is None else nbest

    def _key(self, task: SearchTask, index: int) -> int:
        if index not in task.sample_keys:
            task.sample_keys[index] = sample_key(self.seed or 0, index, task.input_ids)
        return task.sample_keys[index]


def sample_key(seed: int, index: int, input_ids: Sequence[int]) -> int:
    """Return 64 bits for one sample of a text."""
    text = ",".join(map(str, (seed, index, *input_ids))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
