"""CUDA graphs of the forward and backward pass.

In a step of a small model, launching hundreds of kernels takes longer than running them; a CUDA graph
launches them all at once.

A graph is captured for each shape, so batches are padded to a few shapes. The added rows have no targets, so
loss and gradients do not change. A graph writes gradients to fixed addresses, so gradient tensors are zeroed
between steps and never freed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import Batch
from regard.data.tokenizer import PAD

LENGTH_MULTIPLE = 8  # lengths are rounded up to a multiple of this if batch.multiple is 1


@dataclass(frozen=True)
class GraphShapes:
    """Chooses the shape that a batch of pairs is padded to, given the limits of `Batches`.

    The longer side is rounded up to batch.multiple, or LENGTH_MULTIPLE; the other side to twice that, because
    the two lengths of a batch are similar; the rows to the maximum for that length.
    """

    tokens: int
    sentences: int | None = None
    multiple: int = 1

    def pad(self, rows: int, source: int, target: int) -> tuple[int, int, int]:
        """Return the padded (rows, source length, target length)."""
        multiple = self.multiple if self.multiple > 1 else LENGTH_MULTIPLE
        longer = _round_up(max(source, target), multiple)
        shorter = min(longer, _round_up(min(source, target), 2 * multiple))
        max_rows = self.tokens // max(1, longer - multiple + self.multiple)
        rows = max(rows, max_rows if self.sentences is None else min(max_rows, self.sentences))
        return (rows, longer, shorter) if source >= target else (rows, shorter, longer)


def _round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


@dataclass
class _Graph:
    """A captured graph with its input and output tensors."""

    batch: Batch
    weight: Tensor
    graph: torch.cuda.CUDAGraph
    total: Tensor
    nll: Tensor


def can_record(model: nn.Module) -> bool:
    """True unless the model has an RNN: packed sequences need their lengths on the CPU."""
    return not any(isinstance(m, nn.RNNBase) for m in model.modules())


class GraphRecorder:
    """Runs forward and backward passes of `module(batch, smoothing, None)` as CUDA graphs."""

    def __init__(
        self,
        module: nn.Module,
        parameters: list[nn.Parameter],
        smoothing: float,
        shapes: GraphShapes,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.module, self.parameters, self.smoothing = module, parameters, smoothing
        self.shapes, self.autocast = shapes, autocast
        self.graphs: dict[tuple[int, ...], _Graph] = {}
        self.pool = torch.cuda.graph_pool_handle()
        for p in parameters:
            p.grad = torch.zeros_like(p)

    def backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        """Add the gradient of weight · loss; return the sums of the loss and of −log p, on the device."""
        shape = self._shape(batch)
        graph = self.graphs.get(shape)
        if graph is None:
            graph = self.graphs[shape] = self._capture(shape, batch.source is not None)
        self._copy_inputs(graph, batch, weight)
        graph.graph.replay()
        return graph.total.clone(), graph.nll.clone()

    def zero_gradients(self) -> None:
        torch._foreach_zero_(self._gradients())  # type: ignore[attr-defined]

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def _shape(self, batch: Batch) -> tuple[int, ...]:
        """(rows, source length, target length) of the graph for this batch."""
        target = batch.target.shape[1] - 1  # without BOS
        if batch.source is None:
            return len(batch), 0, target
        return self.shapes.pad(len(batch), batch.source.shape[1], target)

    def _copy_inputs(self, graph: _Graph, batch: Batch, weight: float) -> None:
        graph.weight.fill_(weight)
        for buffer, values in ((graph.batch.target, batch.target), (graph.batch.source, batch.source)):
            if buffer is not None and values is not None:
                if buffer.shape != values.shape:
                    buffer.fill_(PAD)
                buffer[: values.shape[0], : values.shape[1]].copy_(values, non_blocking=True)
        lengths, values = graph.batch.source_lengths, batch.source_lengths
        if lengths is not None and values is not None:
            lengths.fill_(1)
            lengths[: len(values)].copy_(values, non_blocking=True)

    def _capture(self, shape: tuple[int, ...], has_source: bool) -> _Graph:
        batch = self._empty_batch(shape, has_source)
        weight = torch.zeros((), device=self.parameters[0].device)
        gradients = [gradient.clone() for gradient in self._gradients()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm-up run: libraries initialize themselves
            self._run(batch, weight)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            total, nll = self._run(batch, weight)
        torch._foreach_copy_(self._gradients(), gradients)  # type: ignore[attr-defined]
        return _Graph(batch, weight, graph, total, nll)

    def _empty_batch(self, shape: tuple[int, ...], has_source: bool) -> Batch:
        rows, source, target = shape
        device = self.parameters[0].device

        def full(*size: int, value: int = PAD) -> Tensor:
            return torch.full(size, value, dtype=torch.long, device=device)

        return Batch(
            target=full(rows, target + 1),  # with BOS
            target_lengths=full(rows, value=1),
            rows=full(rows),
            tokens=1,
            source_tokens=1,
            source=full(rows, source) if has_source else None,
            source_lengths=full(rows, value=1) if has_source else None,
        )

    def _run(self, batch: Batch, weight: Tensor) -> tuple[Tensor, Tensor]:
        with self.autocast():
            total, nll, _ = self.module(batch, self.smoothing, None)
        (total * weight).backward()
        return total.detach(), nll.detach()
