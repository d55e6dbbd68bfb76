"""One optimizer step: forward and backward passes, gradient clipping, update.

With a fused optimizer, a step does not wait for the GPU, so a non-finite loss or gradient is detected only
later. It must not change the weights: from the first such step on, the optimizer skips all updates.
`Stepper.check`, called every few steps, waits for the GPU and returns that step.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.models.memory import DecoderState
from regard.optimization.optimizers import clip_gradients, set_learning_rate
from regard.recipe.schema import Recipe
from regard.training.cuda_graph import GraphRecorder, GraphShapes, can_record
from regard.training.distributed import World, gradient_sync
from regard.training.ema import Ema
from regard.training.rng_state import detach_stream_state
from regard.training.step_iterator import StepBatches

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MIN_LOSS_SCALE = 2.0**-10  # for float16; a smaller one means that gradients overflow at any scale


@dataclass
class StepResult:
    """Loss and gradient norm of a step, not yet checked for non-finite values."""

    step: int
    batches: list[Batch]  # on the CPU
    losses: list[Tensor]
    norm: Tensor


@dataclass
class NonFinite:
    """The first step with a non-finite loss or gradient in this process."""

    step: int
    norm: float
    losses: list[float]
    batches: list[Batch]


@dataclass
class Stepper:
    """Model, optimizer and everything else that a step changes."""

    model: nn.Module
    module: nn.Module  # computes the model's loss; wrapped by DDP or FSDP if there are several processes
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    world: World
    ema: Ema | None = None
    stream_state: DecoderState | None = None  # recurrent state after the last batch, with batch.mode stream
    loss_sums: Tensor = field(init=False)  # (2,): loss and −log p since the last log line
    norm: Tensor = field(init=False)  # of the last gradient
    scaler: torch.amp.GradScaler | None = None
    _unchecked: list[StepResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        device = self.world.device
        self.loss_sums = torch.zeros(2, dtype=torch.float64, device=device)
        self.norm = torch.zeros((), device=device)
        self._found_inf = torch.zeros((), device=device)
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        if self.recipe.training.precision == "float16":
            self.scaler = torch.amp.GradScaler(device.type)
        self.recorder = self._make_recorder()

    def _make_recorder(self) -> GraphRecorder | None:
        """CUDA graphs, if requested and possible: one GPU, no loss scaling, a model that can be captured."""
        training, batch = self.recipe.training, self.recipe.batch
        requested = training.graph and self.world.device.type == "cuda" and self.world.size == 1
        if not requested or self.scaler is not None or not can_record(self.model, self.recipe.task):
            return None
        shapes = GraphShapes(batch.tokens, batch.sentences, batch.multiple)
        return GraphRecorder(self.module, self._parameters, training.smoothing, shapes, self.autocast)

    def step(self, number: int, data: StepBatches, rate: float) -> None:
        """Train on the batches of step `number` with this learning rate."""
        losses = [self._backward(batch, i, data) for i, batch in enumerate(data.batches)]
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        self.norm = clip_gradients(self._parameters, self.recipe.optimizer.clip)
        set_learning_rate(self.optimizer, rate)
        self._update()
        if self.recorder is None:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.recorder.zero_gradients()
        if self.ema is not None:
            self.ema.update(number)
        self._unchecked.append(StepResult(number, data.batches, losses, self.norm))

    def _update(self) -> None:
        """Update the weights unless a gradient was not finite."""
        if self.scaler is not None:
            self.scaler.step(self.optimizer)  # skips the update if the loss scale was too large
            self.scaler.update()
            return
        is_bad = (~torch.isfinite(self.norm)).to(self._found_inf.dtype)
        self._found_inf = torch.maximum(self._found_inf, is_bad)
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):
            # Fused optimizers skip the update on the device, as under a GradScaler.
            self.optimizer.found_inf = self._found_inf  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not self._found_inf.item():  # other optimizers have to wait for the device
            self.optimizer.step()

    def _backward(self, batch: Batch, i: int, data: StepBatches) -> Tensor:
        """Add the gradient of one batch, divided by all targets of the step; return the sum of its losses."""
        weight = self.world.size / data.tokens  # DDP and FSDP divide by the number of processes
        if self.recorder is not None:
            total, nll = self.recorder.backward(batch, weight)
            self.loss_sums += torch.stack([total, nll])
            return total
        batch = batch.to(self.world.device, non_blocking=True)
        with gradient_sync(self.module, i == len(data.batches) - 1):
            with self.autocast():
                state = self.stream_state if batch.continues else None
                total, nll, new_state = self.module(batch, self.recipe.training.smoothing, state)
            loss = total * weight
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        self.stream_state = detach_stream_state(new_state) if self.recipe.batch.mode == "stream" else None
        total = total.detach()
        self.loss_sums += torch.stack([total, nll.detach()])
        return total

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of training.precision, for forward passes."""
        dtype = DTYPES.get(self.recipe.training.precision)
        return nullcontext() if dtype is None else torch.autocast(self.world.device.type, dtype)

    def check(self) -> NonFinite | None:
        """Return the first non-finite step of any process since the last check; waits for the device."""
        unchecked, self._unchecked = self._unchecked, []
        bad = self._first_non_finite(unchecked)
        if self.world.sum([int(bad is not None)])[0] == 0:
            return None
        return bad or NonFinite(unchecked[-1].step if unchecked else 0, float("nan"), [], [])

    def _first_non_finite(self, results: list[StepResult]) -> NonFinite | None:
        """The first of these steps with a non-finite loss or gradient.

        With loss scaling, a non-finite gradient only means that the scale was too large, unless the scale is
        below MIN_LOSS_SCALE already.
        """
        if not results:
            return None
        norms = torch.stack([result.norm for result in results]).tolist()
        losses = torch.stack([loss for result in results for loss in result.losses]).tolist()
        scale_too_small = self.scaler is not None and self.scaler.get_scale() < MIN_LOSS_SCALE
        for result, norm in zip(results, norms, strict=True):
            step_losses, losses = losses[: len(result.losses)], losses[len(result.losses) :]
            finite = all(map(_is_finite, step_losses))
            if self.scaler is None:
                finite = finite and _is_finite(norm)
            elif scale_too_small and result is results[-1]:
                finite = False
            if not finite:
                return NonFinite(result.step, norm, step_losses, result.batches)
        return None


def _is_finite(value: float) -> bool:
    return value - value == 0
