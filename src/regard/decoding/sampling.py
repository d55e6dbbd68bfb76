"""Sampling: each word drawn by its probability, the unlikely ones left out if so wished."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import arguments
from regard.decoding.beam import real, whole
from regard.decoding.strategy import Groups, Hypothesis, Numbers, Reals, Rows, SearchTask, Shape, Strategy

TEMPERATURES = (
    1e-4,
    100.0,
)  # below, log p / temperature leaves the range of numbers; above, all tokens are equally likely
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Sample(Strategy):
    """`count` texts drawn word by word from p^(1/temperature).

    Of each step's words only the `top_k` best can come (0: all), of these the best that together have `top_p` (Holtzman et al.
    2020), of these the ones at least `min_p` times as likely as the best (Nguyen et al. 2024). The texts of a sentence depend on
    the seed and the sentence alone, not on what else is translated: the same line twice gives the same texts twice. Without a
    seed one is drawn, and is there to be read. Scores are log p under the model itself, before all of this.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    count: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        real("temperature", self.temperature, *TEMPERATURES)
        whole("top_k", self.top_k, 0)
        real("top_p", self.top_p, 0, 1, above=True)
        real("min_p", self.min_p, 0, 1)
        whole("count", self.count, 1)
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbits(32))
        arguments.integer("seed", self.seed, 0, 1 << 256)

    def shape(self) -> Shape:
        return Shape(self.count, 1, self.top_k or None)

    def rank(self, log_p: float, length: int) -> float:
        return log_p

    def draw(self, log_p: Tensor, words: Tensor | None, rows: Rows, groups: Groups) -> tuple[Reals, Numbers]:
        if words is None and self.top_k:  # rules wanted to see all
            log_p, words = log_p.topk(min(self.top_k, log_p.shape[-1]), -1)
        uniform = self.uniform(groups)[rows.group]
        at = self.pick(log_p, torch.from_numpy(uniform).to(log_p.device))[:, None]
        word = at if words is None else words.gather(-1, at)
        return log_p.gather(-1, at).cpu().numpy().astype(np.float64), word.cpu().numpy()

    def pick(self, log_p: Tensor, uniform: Tensor) -> Tensor:
        """Where the sum of probabilities passes `uniform` (rows,) in [0, 1): places in the rows of log_p."""
        p = torch.softmax(log_p.double() / self.temperature, -1)
        dead = (log_p == -torch.inf).all(
            -1
        )  # rules forbid every token: any choice has log p −∞, and the search drops the row
        p = p.masked_fill(dead[:, None], 0)
        order = None
        if self.top_p < 1:
            p, order = p.sort(dim=-1, descending=True, stable=True)
            p = p.masked_fill(p.cumsum(-1) - p >= self.top_p, 0)
        if self.min_p:
            p = p.masked_fill(p < self.min_p * p.amax(-1, keepdim=True), 0)
        total = p.cumsum(-1)
        all_ = total[:, -1]
        goal = torch.minimum(
            uniform * all_, torch.nextafter(all_, torch.zeros_like(all_))
        )  # rounding may not reach past the end
        at = torch.searchsorted(total, goal[:, None], right=True)
        at = at.masked_fill(dead[:, None], 0)
        return (at if order is None else order.gather(-1, at))[:, 0]

    def uniform(self, groups: Groups) -> NDArray[np.float64]:
        """A number in [0, 1) for this step of each group: SplitMix64 (Steele et al. 2014) counted from the sentence's own key."""
        with np.errstate(over="ignore"):
            x = np.array(
                [self._key(task, nth) for task, nth in zip(groups.tasks, groups.nth.tolist(), strict=True)],
                np.uint64,
            )
            x = x + (groups.length.astype(np.uint64) + np.uint64(1)) * GOLDEN
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
        return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def order(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """As drawn: the first is a fair sample whatever the count."""
        return sorted(found, key=lambda h: h.group)

    def _key(self, task: SearchTask, nth: int) -> int:
        if nth not in task.keys:
            task.keys[nth] = key(self.seed or 0, nth, task.given)
        return task.keys[nth]


def key(seed: int, nth: int, given: Sequence[int]) -> int:
    """64 bits for the nth sample of a sentence."""
    text = ",".join(map(str, (seed, nth, *given))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def check_sample(sample: Any) -> Sample | None:
    """A `Sample` or None; anything else is refused."""
    return (
        None
        if sample is None
        else arguments.instance("sample", sample, Sample, "a Sample such as Sample(top_p=0.9) or None")
    )
