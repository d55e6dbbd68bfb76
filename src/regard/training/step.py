"""One step of training: the gradient of a step's batches, clipped, and what the optimizer makes of it.

Nothing here waits for a GPU. A loss or gradient that is not finite must change no weights, and is found later: the fused
optimizer leaves everything as it is from the first such step on, and `check`, called every so many steps, says which it was.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Batch
from regard.models.memory import DecoderState
from regard.recipe.schema import Recipe
from regard.training import optimizer as optimizers
from regard.training.cuda_graph import Recorder, Shapes, can_record
from regard.training.distributed import World, last_of_step
from regard.training.ema import Ema
from regard.training.rng_state import detached
from regard.training.step_iterator import StepBatches

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SMALLEST_SCALE = 2.0**-10  # of float16's loss; below, gradients overflow whatever the scale


@dataclass
class StepResult:
    """A step whose numbers nobody has looked at yet."""

    step: int
    batches: list[Batch]  # on the CPU
    losses: list[Tensor]
    norm: Tensor


@dataclass
class NonFinite:
    """The first step that was not finite, as this process saw it."""

    step: int
    norm: float
    losses: list[float]
    batches: list[Batch]


@dataclass
class Stepper:
    """What changes in a step."""

    model: nn.Module
    module: nn.Module  # the model's loss, over all processes
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    world: World
    ema: Ema | None = None
    carried: DecoderState | None = None  # a stream's state after the last batch
    sums: Tensor = field(init=False)  # loss and −log p since the last line of the log
    norm: Tensor = field(init=False)  # length of the last gradient
    scaler: torch.amp.GradScaler | None = None
    _waiting: list[StepResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        device = self.world.device
        self.sums = torch.zeros(2, dtype=torch.float64, device=device)
        self.norm = torch.zeros((), device=device)
        self._bad = torch.zeros((), device=device)
        self._weights = [p for p in self.model.parameters() if p.requires_grad]
        if self.recipe.training.precision == "float16":
            self.scaler = torch.amp.GradScaler(device.type)
        self.recorder = self._recorder()

    def _recorder(self) -> Recorder | None:
        """Recorded steps, where the recipe wants them and they can be had: one GPU, no recurrence, no scaled loss."""
        wanted = self.recipe.training.graph and self.world.device.type == "cuda" and self.world.size == 1
        if not wanted or self.scaler is not None or not can_record(self.model):
            return None
        shapes = Shapes(self.recipe.batch.tokens, self.recipe.batch.sentences, self.recipe.batch.multiple)
        return Recorder(self.module, self._weights, self.recipe.training.smoothing, shapes, self.autocast)

    def step(self, number: int, portion: StepBatches, rate: float) -> None:
        """Learn from the batches of step `number`."""
        losses = [self._backward(batch, i, portion) for i, batch in enumerate(portion.batches)]
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        self.norm = optimizers.clip(self._weights, self.recipe.optimizer.clip)
        optimizers.set_rate(self.optimizer, rate)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)  # leaves the weights alone when the scale was too large
            self.scaler.update()
        else:
            self._bad = torch.maximum(self._bad, (~torch.isfinite(self.norm)).to(self._bad.dtype))
            self.optimizer.found_inf = self._bad  # type: ignore[attr-defined] (what a GradScaler does)
            self.optimizer.step()
        if self.recorder is None:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.recorder.zero()
        if self.ema is not None:
            self.ema.update(number)
        self._waiting.append(StepResult(number, portion.batches, losses, self.norm))

    def _backward(self, batch: Batch, i: int, portion: StepBatches) -> Tensor:
        """Add the gradient of one batch, as its share of the mean over all tokens of the step."""
        share = self.world.size / portion.tokens  # DDP and FSDP divide by the number of processes
        if self.recorder is not None:
            total, nll = self.recorder.backward(batch, share)
            self.sums += torch.stack([total, nll])
            return total
        batch = batch.to(self.world.device, non_blocking=True)
        with last_of_step(self.module, i == len(portion.batches) - 1):
            with self.autocast():
                state = self.carried if batch.continues else None
                total, nll, after = self.module(batch, self.recipe.training.smoothing, state)
            loss = total * share
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        self.carried = detached(after) if self.recipe.batch.mode == "stream" else None
        total = total.detach()
        self.sums += torch.stack([total, nll.detach()])
        return total

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of the recipe, for forward passes."""
        dtype = DTYPES.get(self.recipe.training.precision)
        return nullcontext() if dtype is None else torch.autocast(self.world.device.type, dtype)

    def check(self) -> NonFinite | None:
        """Whether every step since the last check was finite on all processes; waits for the device."""
        waiting, self._waiting = self._waiting, []
        found = self._first_bad(waiting)
        places = self.world.sum([0 if found is None else 1])
        if places[0] == 0:
            return None
        return found or NonFinite(waiting[-1].step if waiting else 0, float("nan"), [], [])

    def _first_bad(self, waiting: list[StepResult]) -> NonFinite | None:
        if not waiting:
            return None
        norms = torch.stack([done.norm for done in waiting]).tolist()
        flat = torch.stack([loss for done in waiting for loss in done.losses]).tolist()
        small = self.scaler is not None and self.scaler.get_scale() < SMALLEST_SCALE
        for done, norm in zip(waiting, norms, strict=True):
            losses, flat = flat[: len(done.losses)], flat[len(done.losses) :]
            finite = all(map(_finite, losses))
            if self.scaler is None:
                finite = finite and _finite(norm)
            elif small and done is waiting[-1]:
                finite = False
            if not finite:
                return NonFinite(done.step, norm, losses, done.batches)
        return None


def _finite(value: float) -> bool:
    return value - value == 0
