"""Group batches into optimizer steps.

A step has `batch.accumulate` batches per process, all of one epoch, so that the same batches form a step on
any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from regard.data.batch import Batch
from regard.data.batch_iterator import BatchStream
from regard.errors import RecipeError
from regard.training.distributed import World


@dataclass
class StepBatches:
    """The batches of one step on this process; counts are over all processes."""

    batches: list[Batch]
    tokens: int
    source_tokens: int
    sentences: int
    flops: int
    stop_requested: bool = False  # some process received a signal
    time_is_up: bool = False  # training.minutes are over on some process


class StepIterator:
    """Group batches into optimizer steps and track the position for resuming."""

    def __init__(
        self, stream: BatchStream, world: World, accumulate: int, flops: Callable[[int, int], int]
    ) -> None:
        self.stream, self.world, self.accumulate = stream, world, accumulate
        self.batches_per_step = accumulate * world.size  # over all processes
        self._flops = lru_cache(maxsize=None)(flops)

    def next(self, stop_requested: bool = False, time_is_up: bool = False) -> StepBatches:
        """Return the batches of the next step.

        The two flags of this process are reduced together with the counts, so that all processes stop after
        the same step.
        """
        self._skip_incomplete_step()
        batches = [next(self.stream) for _ in range(self.accumulate)]
        counts = [
            sum(batch.tokens for batch in batches),
            sum(batch.source_tokens for batch in batches),
            sum(len(batch) for batch in batches),
            sum(training_flops(batch, self._flops) for batch in batches),
            int(stop_requested),
            int(time_is_up),
        ]
        *totals, stops, timeouts = self.world.sum(counts)
        if self.world.device.type == "cuda":
            batches = [batch.pin() for batch in batches]
        return StepBatches(batches, *totals, stop_requested=stops > 0, time_is_up=timeouts > 0)

    def set_batches_per_step(self, batches: int) -> None:
        """Keep the number of batches per step of a checkpoint on another number of processes."""
        if batches % self.world.size:
            raise RecipeError(
                f"a step of this run has {batches} batches, which {self.world.size} processes cannot share "
                f"evenly; resume it with a number of processes that divides {batches}"
            )
        self.accumulate, self.batches_per_step = batches // self.world.size, batches

    def _skip_incomplete_step(self) -> None:
        """Start the next epoch if the rest of this one is less than a step.

        An epoch shorter than a step is repeated within a step.
        """
        position, size = self.stream.state(), self.stream.per_epoch()
        if size >= self.batches_per_step and position["taken"] + self.batches_per_step > size:
            self.stream.restore({**position, "epoch": position["epoch"] + 1, "taken": 0})

    @property
    def epochs(self) -> float:
        """Epochs so far."""
        position, size = self.stream.state(), self.stream.per_epoch()
        usable = size - size % self.batches_per_step if size >= self.batches_per_step else size
        return position["epoch"] + min(1.0, position["taken"] / usable)

    def steps_in(self, epochs: float) -> int:
        """Return the approximate number of steps of so many epochs; batches differ from epoch to epoch."""
        size = self.stream.per_epoch()
        steps = size // self.batches_per_step or size / self.batches_per_step
        return max(1, round(epochs * max(1.0, steps)))

    def state(self) -> dict[str, Any]:
        return self.stream.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.stream.restore(state)


def training_flops(batch: Batch, flops: Callable[[int, int], int]) -> int:
    """Return the FLOPs of training on a batch: three times the forward pass, without padding."""
    targets = batch.target_lengths.tolist()
    sources = [0] * len(targets) if batch.source_lengths is None else batch.source_lengths.tolist()
    return 3 * sum(map(flops, sources, targets))
