"""What every service has, whatever its model does: limits, workers, metrics, and a way to stop."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from regard.serving.metrics import Metrics
from regard.serving.request_batching import Batcher
from regard.serving.request_limits import RequestLimits, draining
from regard.serving.requests import Body
from regard.serving.streaming import Streams
from regard.version import __version__

Cancelled = Sequence[Callable[[], bool]]  # for each text, whether nobody waits for it any more


class BaseService(ABC):
    """A model behind a queue and workers."""

    kind: str  # of the model, in words
    translates = False
    example: tuple[str, str]  # a route and a body to try it with

    def __init__(
        self, model: Any, name: str, limits: RequestLimits | None = None, *, workers: int | None = None
    ) -> None:
        self.model, self.name, self.limits = model, name, limits or RequestLimits()
        self.draining = False
        self.metrics = Metrics()
        self.streams = Streams(self.limits.streams, self.limits.seconds)
        on_cpu = next(model.parameters()).device.type == "cpu"
        self.batcher = Batcher(
            self._work,
            self._cost,
            batch_tokens=self.limits.batch_tokens,
            queue=self.limits.queue,
            workers=workers or (cores() if on_cpu else 1),
            begin=lambda: torch.set_num_threads(
                1
            ),  # of this worker: threads of one product stall each other where cores are busy
            metrics=self.metrics,
        )
        self.metrics.gauge(
            "regard_queue_texts", "Texts that wait for a worker.", lambda: self.batcher.waiting
        )
        self.metrics.gauge(
            "regard_ready",
            "1 while requests are taken, 0 when shutting down.",
            lambda: int(not self.draining),
        )
        self.metrics.info(model=name, version=__version__)

    @abstractmethod
    def warm_up(self) -> None:
        """Answer once before anybody asks: what is slow the first time is over, and what cannot work is seen now."""

    @abstractmethod
    def check(self, options: Any, texts: list[str], cancelled: Callable[[], bool] = lambda: False) -> None:
        """Raise a Refusal where a request would cost more than the limits allow. Computes nothing but tokens."""

    @abstractmethod
    def answers(self, options: Any, texts: list[str], cancelled: Cancelled) -> Sequence[Any]:
        """One answer for each text, ready for JSON."""

    @abstractmethod
    def _cost(self, options: Any, text: str) -> int:
        """Tokens that a text adds to a batch."""

    def cancel_all(self) -> None:
        """Stop what is under way: requests get 503, and workers are free after the step they are in."""
        self.batcher.cancel_all(draining())
        self.streams.cancel_all()

    def _work(self, options: Body, texts: list[str], cancelled: Cancelled) -> list[str]:
        """The answers as JSON: written by the worker, not by the loop that serves everybody."""
        return [json.dumps(answer, ensure_ascii=False) for answer in self.answers(options, texts, cancelled)]


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
