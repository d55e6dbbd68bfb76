"""The base class of services: a model behind a queue and workers, with limits and metrics."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fastapi import FastAPI

from regard.data.encoding_workers import cores
from regard.serving.http_errors import shutting_down
from regard.serving.metrics import ServerMetrics
from regard.serving.request_batching import Batcher
from regard.serving.request_limits import RequestLimits
from regard.serving.requests import Body
from regard.serving.stream_pool import StreamPool
from regard.version import __version__

Cancelled = Sequence[Callable[[], bool]]  # per text, True if its answer is no longer needed


class Service(ABC):
    """A model behind a queue and workers.

    Args:
        model: with its tokenizers.
        name: of the model, as /health and the metrics show it.
        limits: of requests.
        workers: threads; default: one per core, or one for a GPU.
    """

    kind: str  # of the model, for messages
    translates = False  # True if requests may name a target language
    example: tuple[str, str]  # a route and a body

    def __init__(
        self, model: Any, name: str, limits: RequestLimits | None = None, *, workers: int | None = None
    ) -> None:
        self.model, self.name, self.limits = model, name, limits or RequestLimits()
        self.extensions: list[Callable[[FastAPI], None]] = []  # add routes to the application
        self.public = {"/health"}  # paths that need no token
        self.draining = False
        self.metrics = ServerMetrics()
        self.streams = StreamPool(self.limits.streams, self.limits.seconds)
        on_cpu = next((p.device.type for p in model.parameters()), "cpu") == "cpu"
        self.batcher = Batcher(
            self._work,
            self._cost,
            batch_tokens=self.limits.batch_tokens,
            queue=self.limits.queue,
            workers=workers or (cores() if on_cpu else 1),
            begin=lambda: torch.set_num_threads(1),  # threads of one matmul stall each other on busy cores
            metrics=self.metrics,
        )
        self.metrics.gauge("regard_queue_texts", "Texts waiting for a worker.", lambda: self.batcher.waiting)
        self.metrics.gauge("regard_ready", "0 while shutting down, else 1.", lambda: int(not self.draining))
        self.metrics.info(model=name, version=__version__)

    @abstractmethod
    def warm_up(self) -> None:
        """Answer one text before the first request, which compiles kernels and finds errors early."""

    @abstractmethod
    def check(self, options: Any, texts: list[str], cancelled: Callable[[], bool] = lambda: False) -> None:
        """Raise RequestError if a request would cost more than the limits allow. Only tokenizes."""

    @abstractmethod
    def answers(self, options: Any, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        """Return one answer per text, ready for JSON."""

    @abstractmethod
    def _cost(self, options: Any, text: str) -> int:
        """Return the number of tokens that a text adds to a batch."""

    def cancel_all(self) -> None:
        """Cancel all requests: they get 503, and workers are free after their current step."""
        self.batcher.cancel_all(shutting_down())
        self.streams.cancel_all()

    def _work(self, options: Body, texts: list[str], cancelled: Cancelled) -> list[str]:
        """Return the answers as JSON, serialised in the worker to keep the event loop free."""
        return [json.dumps(answer, ensure_ascii=False) for answer in self.answers(options, texts, cancelled)]
