"""Steps that are recorded once and replayed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

Body = Callable[[], Any]
Runner = Callable[[dict[Any, Any], Any, Body], Any]  # recordings, the key of one, what to run


class CapturedGraph(ABC):
    """Runs a step by its key: in earnest the first time, recorded at the second, replayed from then on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, kept: dict[Any, Any], key: Any, body: Body) -> Any:
        if key not in kept:
            with self._lock:
                found = self.warm(body)
            kept[key] = None
            return found
        if kept[key] is None:
            with self._lock:
                kept[key] = self.record(body)
        replay, found = kept[key]
        replay()
        return found

    def warm(self, body: Body) -> Any:
        return body()

    @abstractmethod
    def record(self, body: Body) -> tuple[Callable[[], None], Any]:
        """How to repeat the body, and what it gives, without having run it in effect."""


class Graphs(CapturedGraph):
    """CUDA graphs that share their memory: only one runs at a time, and all that lasts is on a board."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        with torch.cuda.device(device):
            self.pool, self.side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def warm(self, body: Body) -> Any:
        """Beside the main stream, where libraries make what a recording needs."""
        with torch.cuda.device(self.device):
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                found = body()
            torch.cuda.current_stream().wait_stream(self.side)
        return found

    def record(self, body: Body) -> tuple[Callable[[], None], Any]:
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self.device),
            torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"),
        ):
            found = body()
        return graph.replay, found


def at_once(kept: dict[Any, Any], key: Any, body: Body) -> Any:
    """No recording: what a CPU does."""
    return body()
