"""CUDA graphs of the forward and backward pass.

In a step of a small model, launching hundreds of kernels takes longer than running them; a CUDA graph
launches them all at once.

A graph is captured for each shape, so batches are padded to a few shapes. The added rows have no targets, so
loss and gradients do not change. A graph writes gradients to fixed addresses, so gradient tensors are zeroed
between steps and never freed.

The first batch of a shape runs without a graph, which also initializes libraries and kernels for the capture;
the second batch captures. So a shape that occurs once costs no capture.
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
from regard.layers.recurrent import without_packing

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
class _Captured:
    """A graph and its output tensors."""

    graph: torch.cuda.CUDAGraph
    total: Tensor
    nll: Tensor


@dataclass
class _Shape:
    """The input tensors of a shape, and its graph from the second batch on."""

    batch: Batch
    weight: Tensor
    captured: _Captured | None = None


def can_record(model: nn.Module, task: str) -> bool:
    """Whether the passes of a model can be captured.

    A recurrent encoder would pack its sequences by lengths on the CPU; GRUs and plain RNNs can do without
    (layers/recurrent.py). A recurrent language model continues its state from batch to batch.
    """
    recurrent = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
    return not recurrent or (task == "translate" and not any(isinstance(m, nn.LSTM) for m in recurrent))


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
        self._shapes: dict[tuple[int, ...], _Shape] = {}
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        for p in parameters:
            p.grad = torch.zeros_like(p)

    def backward(self, batch: Batch, weight: float) -> tuple[Tensor, Tensor]:
        """Add the gradient of weight · loss; return the sums of the loss and of −log p, on the device."""
        sizes = self._padded_sizes(batch)
        shape = self._shapes.get(sizes)
        if shape is None:
            shape = self._shapes[sizes] = self._make_shape(sizes, batch.source is not None)
            self._copy_inputs(shape, batch, weight)
            return self._run(shape)
        if shape.captured is None:
            shape.captured = self._capture(shape)
        self._copy_inputs(shape, batch, weight)
        shape.captured.graph.replay()
        return shape.captured.total.clone(), shape.captured.nll.clone()

    def zero_gradients(self) -> None:
        torch._foreach_zero_(self._gradients())  # type: ignore[attr-defined]

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def _padded_sizes(self, batch: Batch) -> tuple[int, ...]:
        """(rows, source length, target length) that this batch is padded to."""
        target = batch.target.shape[1] - 1  # without BOS
        if batch.source is None:
            return len(batch), 0, target
        return self.shapes.pad(len(batch), batch.source.shape[1], target)

    def _copy_inputs(self, shape: _Shape, batch: Batch, weight: float) -> None:
        shape.weight.fill_(weight)
        for buffer, values in ((shape.batch.target, batch.target), (shape.batch.source, batch.source)):
            if buffer is not None and values is not None:
                if buffer.shape != values.shape:
                    buffer.fill_(PAD)
                buffer[: values.shape[0], : values.shape[1]].copy_(values, non_blocking=True)
        lengths, values = shape.batch.source_lengths, batch.source_lengths
        if lengths is not None and values is not None:
            lengths.fill_(1)
            lengths[: len(values)].copy_(values, non_blocking=True)

    def _capture(self, shape: _Shape) -> _Captured:
        """Capture the passes of a shape; nothing is computed."""
        free, total_memory = torch.cuda.mem_get_info()
        if free < total_memory // 2:  # the allocator cannot free its cache during a capture
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool)
            try:
                total, nll = self._run(shape)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        return _Captured(graph, total, nll)

    def _make_shape(self, sizes: tuple[int, ...], has_source: bool) -> _Shape:
        weight = torch.zeros((), device=self.parameters[0].device)
        return _Shape(self._empty_batch(sizes, has_source), weight)

    def _empty_batch(self, sizes: tuple[int, ...], has_source: bool) -> Batch:
        rows, source, target = sizes
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

    def _run(self, shape: _Shape) -> tuple[Tensor, Tensor]:
        with self.autocast(), without_packing():
            total, nll, _ = self.module(shape.batch, self.smoothing, None)
        (total * shape.weight).backward()
        return total.detach(), nll.detach()
