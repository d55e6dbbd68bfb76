"""Counters of a run and its best validations; checkpoints keep them as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any


@dataclass
class TrainerState:
    """Counts since the start of the run, over all processes and resumptions."""

    step: int = 0
    tokens: int = 0  # target tokens, labels or tags
    source_tokens: int = 0
    sentences: int = 0
    flops: int = 0
    seconds: float = 0.0  # of training and validation, without data preparation and final evaluation
    logged_tokens: int = 0  # since the last log line
    last_validation: int = 0  # its step
    without_improvement: int = 0  # validations since the best
    best: list[dict[str, Any]] = field(default_factory=list)  # best first: step and scores

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def add_validation(
        self, scores: dict[str, Any], keep: int, metric: str | None = "bleu"
    ) -> tuple[bool, bool]:
        """Record a validation at this step; return whether it is among the best `keep`, and the best of all.

        Validations are compared by `metric` (higher is better; None: ignored), then by loss, then the earlier
        wins.
        """
        entry = {"step": self.step, **scores}
        others = [validation for validation in self.best if validation["step"] != self.step]
        ranked = sorted([*others, entry], key=partial(rank, metric=metric), reverse=True)
        improved = ranked[0] is entry
        self.best = ranked[:keep]
        self.last_validation = self.step
        self.without_improvement = 0 if improved else self.without_improvement + 1
        return entry in self.best, improved


def rank(scores: dict[str, Any], metric: str | None) -> tuple[float, float, int]:
    """Return the sort key of a validation."""
    loss = scores["loss"]
    is_nan = loss != loss
    value = scores.get(metric, 0.0) if metric else 0.0
    return value, float("-inf") if is_nan else -loss, -scores["step"]
