"""The server's log on standard error: a message that comes again within a minute is counted, not repeated."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

EVERY = 60.0  # seconds
MOST = 1000  # different messages that are remembered


class Log:
    """Writes lines; equal keys at most once in `every` seconds, with how often they came since."""

    def __init__(self, every: float = EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._seen: dict[str, tuple[float, int]] = {}  # when it was last written, and how often it came since
        self._lock = threading.Lock()

    def write(self, message: str, key: str | None = None) -> bool:
        """Whether it was written, and not only counted."""
        key = message if key is None else key
        with self._lock:
            now = self._clock()
            last, count = self._seen.get(key, (-float("inf"), 0))
            if now - last < self._every:
                self._seen[key] = last, count + 1
                return False
            if len(self._seen) >= MOST:
                self._seen.clear()
            self._seen[key] = now, 0
        again = f" ({count} more times since)" if count else ""
        print(f"regard: {message}{again}", file=sys.stderr, flush=True)
        return True


class Handler(logging.Handler):
    """What asyncio and uvicorn log, as one line without a traceback."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().strip().splitlines() or [""]
        error = record.exc_info[1] if record.exc_info else None
        self._log.write(lines[0] + (f": {error}" if error else ""), f"{record.name}: {lines[0]}")


def attach(log: Log) -> Callable[[], None]:
    """Send the loggers of asyncio and uvicorn to a log; call what is returned to undo it."""
    handler, names = Handler(log), ("asyncio", "uvicorn.error")
    loggers = [logging.getLogger(name) for name in names]
    before = [each.propagate for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.propagate = False

    def detach() -> None:
        for each, propagate in zip(loggers, before, strict=True):
            each.removeHandler(handler)
            each.propagate = propagate

    return detach
