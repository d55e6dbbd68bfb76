"""How far a run is and how good it has been: the numbers that go into checkpoints as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any


@dataclass
class TrainingPosition:
    """Counts since the start of the run, over all processes and all resumptions."""

    step: int = 0
    tokens: int = 0  # target labels learned from
    source_tokens: int = 0
    sentences: int = 0
    flops: int = 0
    seconds: float = 0.0  # of training and validating; preparing and the final evaluation are not counted
    logged_tokens: int = 0  # labels since the last line of the log
    validated: int = 0  # the step of the last validation
    waited: int = 0  # validations since the best
    best: list[dict[str, Any]] = field(default_factory=list)  # best first: step, and the scores there

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restored(cls, state: dict[str, Any]) -> TrainingPosition:
        return cls(**state)

    def consider(self, scores: dict[str, Any], keep: int, figure: str | None = "bleu") -> tuple[bool, bool]:
        """Enter a validation at this step; whether it is among the best `keep`, and whether it is the best of all.

        What `best` means: most of the figure first, where there is one, then a low loss; of equals the earlier one.
        """
        entry = {"step": self.step, **scores}
        ranked = sorted(
            [*(b for b in self.best if b["step"] != self.step), entry],
            key=partial(goodness, figure=figure),
            reverse=True,
        )
        best = ranked[0] is entry
        self.best = ranked[:keep]
        self.validated = self.step
        self.waited = 0 if best else self.waited + 1
        return entry in self.best, best


def goodness(scores: dict[str, Any], figure: str | None) -> tuple[float, float, int]:
    """A validation as something that sorts."""
    loss = scores["loss"]
    return (
        scores.get(figure, 0.0) if figure else 0.0,
        -loss if loss == loss else float("-inf"),
        -scores["step"],
    )
