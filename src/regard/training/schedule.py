"""Learning rates by step, counted from 1. `peak` is the highest; every schedule rises to it in a straight line first.

The rate of a step depends on nothing but the step, except for `Plateau`, which remembers how validation went, and `Cosine`, which
remembers its length; what they remember goes into checkpoints as JSON.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from regard.errors import RecipeError
from regard.recipe import schema


def rise(step: int, warmup: int) -> float:
    """The share of the peak reached after `step` of `warmup` steps."""
    return min(1.0, step / warmup) if warmup else 1.0


def inverse_sqrt(step: int, peak: float, warmup: int) -> float:
    """peak · min(step/warmup, √(warmup/step)): equation 3 of Vaswani et al. 2017, where peak = 1/√(dim · warmup)."""
    return peak * min(step / warmup, math.sqrt(warmup / step))


def cosine(step: int, peak: float, warmup: int, steps: int, floor: float = 0.0) -> float:
    """After the rise, half a cosine from `peak` down to `floor` at `steps` (Loshchilov & Hutter 2017, equation 5), then `floor`."""
    if step < warmup:
        return peak * rise(step, warmup)
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return floor + (peak - floor) * (1 + math.cos(math.pi * done)) / 2


def constant(step: int, peak: float, warmup: int) -> float:
    """`peak`, after the rise."""
    return peak * rise(step, warmup)


class Schedule(Protocol):
    """What the trainer asks of a schedule."""

    def rate(self, step: int) -> float:
        """The learning rate of this step."""
        ...

    def observe(self, better: bool) -> None:
        """Validation was done, and was better than every one before, or not."""
        ...

    def state(self) -> dict[str, Any]:
        """What must be remembered, as JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave."""
        ...


class _Stateless:
    def observe(self, better: bool) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


@dataclass
class InverseSqrt(_Stateless):
    peak: float
    warmup: int

    def rate(self, step: int) -> float:
        return inverse_sqrt(step, self.peak, self.warmup)


@dataclass
class Cosine(_Stateless):
    """`steps` is fixed when the run starts and kept in checkpoints; counted anew on another number of processes it would differ."""

    peak: float
    warmup: int
    steps: int
    floor: float = 0.0

    def rate(self, step: int) -> float:
        return cosine(step, self.peak, self.warmup, self.steps, self.floor)

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        self.steps = int(state.get("steps", self.steps))


@dataclass
class Constant(_Stateless):
    peak: float
    warmup: int = 0

    def rate(self, step: int) -> float:
        return constant(step, self.peak, self.warmup)


@dataclass
class Plateau:
    """`factor` times the rate after more than `patience` validations in a row without a better one; not below `floor`."""

    peak: float
    warmup: int = 0
    factor: float = 0.5
    patience: int = 2
    floor: float = 0.0
    waited: int = 0
    cuts: int = 0

    def rate(self, step: int) -> float:
        return max(self.floor, self.peak * self.factor**self.cuts) * rise(step, self.warmup)

    def observe(self, better: bool) -> None:
        self.waited = 0 if better else self.waited + 1
        if self.waited > self.patience:
            self.waited, self.cuts = 0, self.cuts + 1

    def state(self) -> dict[str, Any]:
        return {key: asdict(self)[key] for key in ("waited", "cuts")}

    def restore(self, state: dict[str, Any]) -> None:
        self.waited, self.cuts = int(state["waited"]), int(state["cuts"])


def make(settings: schema.Schedule, peak: float, steps: int | None) -> Schedule:
    """The schedule a recipe names. `steps` is the length of the run, where it is known beforehand: a cosine needs it."""
    match settings:
        case schema.InverseSqrt():
            return InverseSqrt(peak, settings.warmup)
        case schema.Cosine():
            if steps is None:
                raise RecipeError(
                    "a cosine schedule needs the length of the run; set training.steps or training.epochs"
                )
            return Cosine(peak, settings.warmup, steps, settings.floor)
        case schema.Plateau():
            return Plateau(peak, settings.warmup, settings.factor, settings.patience, settings.floor)
        case schema.Constant():
            return Constant(peak, settings.warmup)
        case _:
            raise RecipeError(f"there is no schedule {settings!r}")
