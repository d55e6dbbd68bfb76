"""Prometheus metrics of a server, served at /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.registry import Collector

__all__ = ["CONTENT_TYPE", "ServerMetrics"]

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServerMetrics:
    """The metrics of one service, in a registry of their own, so that a process can run several services.

    The route of a request for an unknown path is "other", which bounds the number of label values.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.in_flight = 0  # requests being answered; only the event loop's thread changes it
        self.requests = Counter(
            "regard_requests_total", "Answered requests.", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "regard_request_seconds",
            "Time from the arrival of a request to the end of its response.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.batch_texts = Histogram(
            "regard_batch_texts", "Texts per batch.", buckets=SIZES, registry=registry
        )
        self.batch_seconds = Histogram(
            "regard_batch_seconds", "Time of one batch.", buckets=SECONDS, registry=registry
        )
        self.tokens = Counter(
            "regard_tokens_total", "Tokens read (source) and generated (target).", ["side"], registry=registry
        )
        self.gauge("regard_requests_in_flight", "Requests being answered.", lambda: self.in_flight)

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Add a gauge; `value` is called each time the metrics are read."""
        Gauge(name, help, registry=self.registry).set_function(value)

    def info(self, **labels: str) -> None:
        """Set the labels of `regard_info`."""
        Info("regard", "The model and version being served.", registry=self.registry).info(labels)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(_WithoutCreated(self.registry))


class _WithoutCreated(Collector):
    """A registry without the `_created` samples, which double the text and which nothing reads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
