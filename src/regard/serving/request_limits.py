"""The limits of a server."""

from __future__ import annotations

from dataclasses import dataclass, fields

from regard.errors import OptionError


@dataclass(frozen=True)
class RequestLimits:
    """All limits of a server. A request beyond them is refused at once, with the reason."""

    body: int = 1 << 20  # bytes of a request
    texts: int = 1000  # per request
    characters: int = 10_000  # per text
    tokens: int = 2048  # of one input and of one output
    work: int = 2_000_000  # rows × steps of one request's search
    queue: int = 4000  # texts waiting for a worker
    requests: int = 1000  # answered at the same time
    seconds: float = 60.0  # timeout of a request
    streams: int = 8  # streams of tokens at the same time
    batch_tokens: int = 2048  # per batch
    weights: int = 4_000_000  # attention weights in one response
    connections: int = 1000  # open at the same time
    idle: float = 15.0  # seconds for the header of a request, and between two requests
    grace: float = 20.0  # seconds for accepted requests to finish after SIGTERM

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value <= 0:
                raise OptionError(f"the limit {field.name} must be more than 0, got {value}")
        if self.queue < self.texts:
            raise OptionError(
                f"a queue of {self.queue} texts cannot hold one request of {self.texts}; "
                "raise the limit queue, or lower the limit texts"
            )
