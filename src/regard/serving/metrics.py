"""Counts and times of a server, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

Labels = tuple[str, ...]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Counter:
    """How often something happened, by its labels."""

    kind = "counter"

    def __init__(self, name: str, about: str, *labels: str) -> None:
        self.name, self.about, self.labels = name, about, labels
        self._values: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, *labels: str, count: float = 1) -> None:
        with self._lock:
            self._values[labels] = self._values.get(labels, 0) + count

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0)

    def lines(self) -> list[str]:
        with self._lock:
            return [
                f"{self.name}{_braces(self.labels, key)} {_number(value)}"
                for key, value in sorted(self._values.items())
            ]


class Gauge:
    """A state that is asked for when somebody looks."""

    kind = "gauge"

    def __init__(
        self, name: str, about: str, read: Callable[[], float], labels: dict[str, str] | None = None
    ) -> None:
        self.name, self.about, self._read, self._labels = name, about, read, labels or {}

    def lines(self) -> list[str]:
        return [
            f"{self.name}{_braces(tuple(self._labels), tuple(self._labels.values()))} {_number(self._read())}"
        ]


class Histogram:
    """How many values lay at or below each bound, how many there were, and their sum."""

    kind = "histogram"

    def __init__(self, name: str, about: str, bounds: Sequence[float], *labels: str) -> None:
        self.name, self.about, self.bounds, self.labels = name, about, bounds, labels
        self._found: dict[Labels, tuple[list[int], float]] = {}
        self._lock = threading.Lock()

    def see(self, value: float, *labels: str) -> None:
        with self._lock:
            counts, total = self._found.get(labels, ([0] * (len(self.bounds) + 1), 0.0))
            counts[bisect_left(self.bounds, value)] += 1
            self._found[labels] = counts, total + value

    def lines(self) -> list[str]:
        found = []
        with self._lock:
            for key, (counts, total) in sorted(self._found.items()):
                below = 0
                for bound, count in zip((*map(_number, self.bounds), "+Inf"), counts, strict=True):
                    below += count
                    found.append(f"{self.name}_bucket{_braces((*self.labels, 'le'), (*key, bound))} {below}")
                found.append(f"{self.name}_sum{_braces(self.labels, key)} {_number(total)}")
                found.append(f"{self.name}_count{_braces(self.labels, key)} {below}")
        return found


class Metrics:
    """What a server counts. Labels are few and known beforehand: a path that does not exist is `other`."""

    def __init__(self) -> None:
        self.in_flight = 0  # changed by the event loop's thread alone
        self.requests = Counter("regard_requests_total", "Requests that were answered.", "route", "status")
        self.seconds = Histogram(
            "regard_request_seconds", "Time from a request to the end of its answer.", SECONDS, "route"
        )
        self.batch_texts = Histogram("regard_batch_texts", "Texts that were computed together.", SIZES)
        self.batch_seconds = Histogram("regard_batch_seconds", "Time of one batch.", SECONDS)
        self.tokens = Counter("regard_tokens_total", "Tokens of texts that were read and written.", "side")
        self._gauges: list[Gauge] = [
            Gauge("regard_requests_in_flight", "Requests that are being answered.", lambda: self.in_flight)
        ]

    def gauge(
        self, name: str, about: str, read: Callable[[], float], labels: dict[str, str] | None = None
    ) -> None:
        self._gauges.append(Gauge(name, about, read, labels))

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        found: list[str] = []
        for each in (
            self.requests,
            self.seconds,
            self.batch_texts,
            self.batch_seconds,
            self.tokens,
            *self._gauges,
        ):
            found += [f"# HELP {each.name} {each.about}", f"# TYPE {each.name} {each.kind}", *each.lines()]
        return "\n".join(found) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _braces(names: Sequence[str], values: Sequence[str]) -> str:
    return (
        "{" + ",".join(f'{n}="{_escape(v)}"' for n, v in zip(names, values, strict=True)) + "}"
        if names
        else ""
    )


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
