"""The batches of each step: `accumulate` on every process, never from two epochs, so that the same batches make a step however
many processes share them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from regard.data.batches import Batch, BatchStream
from regard.errors import RecipeError
from regard.training.distributed import World


@dataclass
class StepBatches:
    """What one step learns from: this process's batches, and counts over all processes."""

    batches: list[Batch]
    tokens: int
    source_tokens: int
    sentences: int
    flops: int
    stops: int  # wishes to stop after it, added up


class StepIterator:
    """Takes batches off an endless stream, step by step, and knows how far it is."""

    def __init__(
        self, stream: BatchStream, world: World, accumulate: int, flops: Callable[[int, int], int]
    ) -> None:
        self.stream, self.world, self.accumulate = stream, world, accumulate
        self.together = accumulate * world.size  # batches of a step, all processes together
        self._flops = lru_cache(maxsize=None)(flops)

    def next(self, wish: int = 0) -> StepBatches:
        """The next step's batches. `wish` is this process's wish to end after it; all are added up, so that all know."""
        self._turn()
        batches = [next(self.stream) for _ in range(self.accumulate)]
        own = [
            sum(b.tokens for b in batches),
            sum(b.source_tokens for b in batches),
            sum(len(b) for b in batches),
            sum(self._cost(b) for b in batches),
            wish,
        ]
        tokens, source_tokens, sentences, flops, stops = self.world.sum(own)
        if self.world.device.type == "cuda":
            batches = [b.pin() for b in batches]
        return StepBatches(batches, tokens, source_tokens, sentences, flops, stops)

    def keep_together(self, batches: int) -> None:
        """Make a step of so many batches, as it was before, when the number of processes has changed."""
        if batches % self.world.size:
            raise RecipeError(
                f"a step of this run is made of {batches} batches, which {self.world.size} processes cannot share evenly; "
                f"resume it with a number of processes that divides {batches}"
            )
        self.accumulate, self.together = batches // self.world.size, batches

    def _turn(self) -> None:
        """Begin the next epoch when the rest of this one does not make a step. An epoch shorter than a step is read on and on."""
        position = self.stream.state()
        size = self.stream.per_epoch()
        if size >= self.together and position["taken"] + self.together > size:
            self.stream.restore({**position, "epoch": position["epoch"] + 1, "taken": 0})

    def _cost(self, batch: Batch) -> int:
        """Operations of training on a batch: three times the forward pass, padding left out."""
        targets = batch.target_lengths.tolist()
        sources = [0] * len(targets) if batch.source_lengths is None else batch.source_lengths.tolist()
        return 3 * sum(map(self._flops, sources, targets))

    @property
    def epochs(self) -> float:
        """Passes over the data so far."""
        position, size = self.stream.state(), self.stream.per_epoch()
        usable = size - size % self.together if size >= self.together else size
        return position["epoch"] + min(1.0, position["taken"] / usable)

    def steps(self, epochs: float) -> int:
        """About how many steps so many passes take; batches are cut anew in every epoch, so later ones may differ a little."""
        return max(
            1,
            round(
                epochs
                * max(
                    1.0, self.stream.per_epoch() // self.together or self.stream.per_epoch() / self.together
                )
            ),
        )

    def state(self) -> dict[str, Any]:
        return self.stream.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.stream.restore(state)
