"""The gradient of a batch replayed as one CUDA graph: a small model's step is hundreds of kernels, each shorter than its launch.

A graph is recorded for a shape, so batches are padded to few shapes. Rows added so have no words to predict and change nothing.
The gradients always lie in the same tensors, which are set to zero between steps and never taken away.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batches import Batch
from regard.data.tokenizer import PAD

STEP = 8  # lengths are rounded up to a multiple of this where the batches are not made of multiples


@dataclass(frozen=True)
class Shapes:
    """Which few shapes the batches of pairs are padded to, given how they were cut (see `Batches`).

    The wider side goes up to a multiple of the batches' own, or of STEP; the other to one twice as large, since the sides of
    a batch differ in few ways; the rows to the most that a batch so wide can have.
    """

    tokens: int
    sentences: int | None = None
    multiple: int = 1

    def of(self, rows: int, source: int, target: int) -> tuple[int, int, int]:
        """(rows, source tokens, labels) of the shape for so many."""
        step = self.multiple if self.multiple > 1 else STEP
        width = _up(max(source, target), step)
        other = min(width, _up(min(source, target), 2 * step))
        most = self.tokens // max(1, width - step + self.multiple)
        rows = max(rows, most if self.sentences is None else min(most, self.sentences))
        return (rows, width, other) if source >= target else (rows, other, width)


def _up(x: int, step: int) -> int:
    return -(-x // step) * step


@dataclass
class _Graph:
    """One recorded shape: what goes in, the recording, what comes out."""

    batch: Batch
    share: Tensor
    recording: torch.cuda.CUDAGraph
    total: Tensor
    nll: Tensor


def can_record(model: nn.Module) -> bool:
    """Whether the model computes alike for all lengths: packed recurrences ask the CPU how long each sentence is."""
    return not any(isinstance(m, nn.RNNBase) for m in model.modules())


class Recorder:
    """Adds the gradient of share · loss to the weights, as `module(batch, smoothing, None)` and a backward pass would."""

    def __init__(
        self,
        module: nn.Module,
        weights: list[nn.Parameter],
        smoothing: float,
        shapes: Shapes,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.module, self.weights, self.smoothing, self.shapes, self.autocast = (
            module,
            weights,
            smoothing,
            shapes,
            autocast,
        )
        self.graphs: dict[tuple[int, ...], _Graph] = {}
        self.pool = torch.cuda.graph_pool_handle()
        for p in weights:
            p.grad = torch.zeros_like(p)

    def backward(self, batch: Batch, share: float) -> tuple[Tensor, Tensor]:
        """The sums of the batch's loss and −log p, on the device."""
        shape = self._shape(batch)
        graph = self.graphs.get(shape)
        if graph is None:
            graph = self.graphs[shape] = self._record(shape, batch.source is not None)
        self._fill(graph, batch, share)
        graph.recording.replay()
        return graph.total.clone(), graph.nll.clone()

    def zero(self) -> None:
        torch._foreach_zero_([p.grad for p in self.weights if p.grad is not None])  # type: ignore[attr-defined]

    def _shape(self, batch: Batch) -> tuple[int, ...]:
        """(rows, source tokens, labels) of the recording that takes this batch."""
        if batch.source is None:
            return len(batch), 0, batch.target.shape[1] - 1
        return self.shapes.of(len(batch), batch.source.shape[1], batch.target.shape[1] - 1)

    def _fill(self, graph: _Graph, batch: Batch, share: float) -> None:
        graph.share.fill_(share)
        pairs = [(graph.batch.target, batch.target), (graph.batch.source, batch.source)]
        for held, given in pairs:
            if held is not None and given is not None:
                if held.shape != given.shape:
                    held.fill_(PAD)
                held[: given.shape[0], : given.shape[1]].copy_(given, non_blocking=True)
        held, given = graph.batch.source_lengths, batch.source_lengths
        if held is not None and given is not None:
            held.fill_(1)
            held[: len(given)].copy_(given, non_blocking=True)

    def _record(self, shape: tuple[int, ...], translates: bool) -> _Graph:
        rows, source, target = shape
        device = self.weights[0].device
        full = lambda *size, value=PAD: torch.full(size, value, dtype=torch.long, device=device)  # noqa: E731
        batch = Batch(
            target=full(rows, target + 1), target_lengths=full(rows, value=1), rows=full(rows), tokens=1, source_tokens=1,
            source=full(rows, source) if translates else None, source_lengths=full(rows, value=1) if translates else None,
        )  # fmt: skip
        share = torch.zeros((), device=device)
        kept = [p.grad.clone() for p in self.weights if p.grad is not None]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # once outside, so that libraries have made what they need
            self._run(batch, share)
        torch.cuda.current_stream().wait_stream(side)
        recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording, pool=self.pool):
            total, nll = self._run(batch, share)
        torch._foreach_copy_([p.grad for p in self.weights if p.grad is not None], kept)  # type: ignore[attr-defined]
        return _Graph(batch, share, recording, total, nll)

    def _run(self, batch: Batch, share: Tensor) -> tuple[Tensor, Tensor]:
        with self.autocast():
            total, nll, _ = self.module(batch, self.smoothing, None)
        (total * share).backward()
        return total.detach(), nll.detach()
