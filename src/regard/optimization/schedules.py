"""Learning-rate schedules by name.

A schedule is one class: its fields are the keys of the recipe's `schedule:` block, `rate` is the learning
rate of a step, counted from 1.

    @SCHEDULES.add("linear")
    class Linear(ScheduleOptions):
        kind: Literal["linear"] = "linear"
        needs_steps = True

        def rate(self, step, context):
            return context.peak * (1 - step / context.steps)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from regard.errors import RecipeError
from regard.models.options import MAX_COUNT, PartOptions, Positive
from regard.registry import Registry

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Amount = Annotated[float, Field(ge=0)]
WARMUP = "steps of linear warmup from 0"


@dataclass
class ScheduleContext:
    """What a schedule may depend on besides the step."""

    peak: float  # optimizer.lr
    steps: int | None = None  # length of the run; None if only the clock limits it
    memory: dict[str, int] = field(default_factory=dict)  # what `observe` recorded; saved in checkpoints


SCHEDULES: Registry[type[ScheduleOptions]] = Registry("schedule")


class ScheduleOptions(PartOptions):
    """Keys of every schedule."""

    registry: ClassVar = SCHEDULES
    default_kind: ClassVar = "inverse-sqrt"

    kind: Any  # the registered name, a Literal in every subclass
    warmup: Count = Field(default=0, description=WARMUP)

    needs_steps: ClassVar[bool] = False  # the rate depends on the length of the run
    uses_validation: ClassVar[bool] = False  # the rate depends on validation scores

    def rate(self, step: int, context: ScheduleContext) -> float:
        """Return the learning rate of this step."""
        raise NotImplementedError

    def observe(self, improved: bool, context: ScheduleContext) -> None:
        """Record the outcome of a validation in `context.memory`; most schedules ignore it."""

    def warmup_factor(self, step: int) -> float:
        """Return the fraction of the peak during linear warmup, 1 afterwards."""
        return min(1.0, step / self.warmup) if self.warmup else 1.0


@SCHEDULES.add("inverse-sqrt")
class InverseSqrt(ScheduleOptions):
    """Inverse square root with warmup: lr · min(step/warmup, √(warmup/step)).

    Equation 3 of Vaswani et al. 2017, where lr = 1/√(dim · warmup).
    """

    kind: Literal["inverse-sqrt"] = "inverse-sqrt"
    warmup: Positive = Field(default=4000, description=WARMUP)

    def rate(self, step: int, context: ScheduleContext) -> float:
        return context.peak * min(step / self.warmup, math.sqrt(self.warmup / step))


@SCHEDULES.add("cosine")
class CosineDecay(ScheduleOptions):
    """Cosine decay from lr to floor over the run (Loshchilov & Hutter 2017, equation 5)."""

    kind: Literal["cosine"] = "cosine"
    floor: Amount = Field(default=0.0, description="final learning rate")

    needs_steps = True

    def rate(self, step: int, context: ScheduleContext) -> float:
        assert context.steps is not None
        if step < self.warmup:
            return context.peak * self.warmup_factor(step)
        done = min(1.0, (step - self.warmup) / max(1, context.steps - self.warmup))
        return self.floor + (context.peak - self.floor) * (1 + math.cos(math.pi * done)) / 2


@SCHEDULES.add("plateau")
class Plateau(ScheduleOptions):
    """Multiply lr by factor after more than `patience` validations in a row without improvement."""

    kind: Literal["plateau"] = "plateau"
    factor: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.5, description="factor of each reduction of the learning rate"
    )
    patience: Count = Field(
        default=2, description="validations without improvement before the learning rate is reduced"
    )
    floor: Amount = Field(default=0.0, description="minimum learning rate")

    uses_validation = True

    def rate(self, step: int, context: ScheduleContext) -> float:
        reductions = context.memory.get("reductions", 0)
        return max(self.floor, context.peak * self.factor**reductions) * self.warmup_factor(step)

    def observe(self, improved: bool, context: ScheduleContext) -> None:
        memory = context.memory
        memory["waited"] = 0 if improved else memory.get("waited", 0) + 1
        if memory["waited"] > self.patience:
            memory.update(waited=0, reductions=memory.get("reductions", 0) + 1)


@SCHEDULES.add("constant")
class Constant(ScheduleOptions):
    """Constant lr after warmup."""

    kind: Literal["constant"] = "constant"

    def rate(self, step: int, context: ScheduleContext) -> float:
        return context.peak * self.warmup_factor(step)


class LearningRate:
    """The learning rate of a run: a schedule with its context, as the training loop uses it."""

    def __init__(self, schedule: ScheduleOptions, peak: float, steps: int | None = None) -> None:
        if schedule.needs_steps and steps is None:
            raise RecipeError(
                f"schedule.kind {schedule.kind} depends on the length of the run; "
                "set training.steps or training.epochs"
            )
        self.schedule, self.context = schedule, ScheduleContext(peak, steps)

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        return self.schedule.rate(step, self.context)

    def observe(self, improved: bool) -> None:
        """Report a validation to the schedule."""
        self.schedule.observe(improved, self.context)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON."""
        return {"steps": self.context.steps, "memory": dict(self.context.memory)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`.

        A schedule over the length of the run keeps the length it started with: computed from epochs it would
        differ on another number of processes, and the rate would jump.
        """
        if self.schedule.needs_steps:
            self.context.steps = int(state["steps"])
        self.context.memory = {str(name): int(value) for name, value in state["memory"].items()}
