"""The server's log on standard error; messages that repeat within a minute are counted instead of printed."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

INTERVAL = 60.0  # seconds
MAX_KEYS = 1000  # distinct messages that are counted


class Log:
    """Prints messages with the same key at most once in `interval` seconds, and counts repetitions."""

    def __init__(self, interval: float = INTERVAL, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._clock = interval, clock
        self._seen: dict[str, tuple[float, int]] = {}  # time of the last print, repetitions since
        self._lock = threading.Lock()

    def write(self, message: str, key: str | None = None) -> bool:
        """Return True if the message was printed, False if it was only counted."""
        key = message if key is None else key
        with self._lock:
            now = self._clock()
            last, count = self._seen.get(key, (-float("inf"), 0))
            if now - last < self._interval:
                self._seen[key] = last, count + 1
                return False
            if len(self._seen) >= MAX_KEYS:
                self._seen.clear()
            self._seen[key] = now, 0
        again = f" ({count} more times since)" if count else ""
        print(f"regard: {message}{again}", file=sys.stderr, flush=True)
        return True


class Handler(logging.Handler):
    """A logging handler that prints one line per record, without a traceback."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().strip().splitlines() or [""]
        error = record.exc_info[1] if record.exc_info else None
        self._log.write(lines[0] + (f": {error}" if error else ""), f"{record.name}: {lines[0]}")


def attach(log: Log) -> Callable[[], None]:
    """Redirect the loggers of asyncio and uvicorn to a log; returns a function that undoes it."""
    handler, names = Handler(log), ("asyncio", "uvicorn.error")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False

    def detach() -> None:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate

    return detach
