"""What one server takes on, and how it says that something is too much."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from regard.errors import OptionError


@dataclass(frozen=True)
class RequestLimits:
    """Every bound of a server. What lies beyond is refused at once, with the reason, and costs nothing."""

    body: int = 1 << 20  # bytes of a request
    texts: int = 1000  # in one request
    characters: int = 10_000  # of one text
    tokens: int = 2048  # of one text that is read at once, and of one answer
    work: int = 2_000_000  # rows × steps of one request's search
    queue: int = 4000  # texts that wait for a worker
    requests: int = 1000  # that are answered at once
    seconds: float = 60.0  # a request may take
    streams: int = 8  # texts that are written word by word at once
    batch_tokens: int = 2048  # that are computed together
    weights: int = 4_000_000  # numbers in one answer about attention
    connections: int = 1000  # that are open at once
    idle: float = 15.0  # seconds for the header of a request, and of silence between two
    grace: float = 20.0  # seconds that accepted requests have to finish after SIGTERM

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value <= 0:
                raise OptionError(f"the limit {each.name} must be more than 0, got {value}")
        if self.queue < self.texts:
            raise OptionError(
                f"a queue of {self.queue} texts cannot hold one request of {self.texts}; make it larger or that smaller"
            )


@dataclass
class Refusal(Exception):
    """A request that is not served: the HTTP status, one sentence that says why and what to do, and headers that go with it."""

    status: int
    why: str
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.why


def draining() -> Refusal:
    return Refusal(
        503,
        "the server is shutting down and takes no more requests; send it to another, or later",
        {"retry-after": "5"},
    )
