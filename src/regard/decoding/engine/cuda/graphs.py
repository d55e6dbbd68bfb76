"""CUDA graphs: a step is captured once and replayed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

Body = Callable[[], Any]
Runner = Callable[[dict[Any, Any], Any, Body], Any]  # captured graphs, the key of one, what to run


class StepRunner(ABC):
    """Run a step by its key: eagerly the first time, captured the second time, replayed afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, graphs: dict[Any, Any], key: Any, body: Body) -> Any:
        if key not in graphs:
            with self._lock:
                result = self.warm(body)
            graphs[key] = None
            return result
        if graphs[key] is None:
            with self._lock:
                graphs[key] = self.capture(body)
        replay, result = graphs[key]
        replay()
        return result

    def warm(self, body: Body) -> Any:
        return body()

    @abstractmethod
    def capture(self, body: Body) -> tuple[Callable[[], None], Any]:
        """Capture the body; return a function that replays it, and its result."""


class Graphs(StepRunner):
    """CUDA graphs with shared memory: only one runs at a time, and all state is in `Buffers`.

    torch frees the shared memory with its last graph and then cannot capture into it: one tiny graph stays.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        with torch.cuda.device(device):
            self.pool, self.side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self._kept: Any = None

    def warm(self, body: Body) -> Any:
        """Run on a side stream, where libraries allocate what capturing needs."""
        with torch.cuda.device(self.device):
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                result = body()
            torch.cuda.current_stream().wait_stream(self.side)
        return result

    def capture(self, body: Body) -> tuple[Callable[[], None], Any]:
        if self._kept is None:
            self._kept = self._capture(lambda: torch.zeros(1, device=self.device))
        return self._capture(body)

    def _capture(self, body: Body) -> tuple[Callable[[], None], Any]:
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self.device),
            torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"),
        ):
            result = body()
        return graph.replay, result


def run_eagerly(_graphs: dict[Any, Any], _key: Any, body: Body) -> Any:
    """Run without capturing, as on a CPU."""
    return body()
