"""Runs in memory by identifier; the oldest are dropped above a number and a size."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from regard.explorer.run import Run
from regard.serving.http_errors import RequestError


class RunStore:
    """Keeps the newest runs.

    Args:
        max_runs: number of runs.
        max_bytes: bytes of their attention weights together; a single larger run is refused.
    """

    def __init__(self, max_runs: int = 24, max_bytes: int = 512 << 20) -> None:
        self.max_runs, self.max_bytes = max_runs, max_bytes
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run) -> str:
        """Store a run and return its identifier, which cannot be guessed."""
        if run.bytes > self.max_bytes:
            raise RequestError(
                422,
                f"the attention of this text takes {run.bytes >> 20:,} MB, and at most "
                f"{self.max_bytes >> 20:,} MB are kept; send less text",
            )
        identity = secrets.token_urlsafe(12)
        with self._lock:
            self._runs[identity] = run
            while len(self._runs) > self.max_runs or self._bytes() > self.max_bytes:
                self._runs.popitem(last=False)
        return identity

    def get(self, identity: str) -> Run:
        """Return a run, which becomes the newest; raise RequestError if it is no longer kept."""
        with self._lock:
            run = self._runs.get(identity)
            if run is not None:
                self._runs.move_to_end(identity)
                return run
        raise RequestError(404, "this run is no longer kept by the server; send the text again")

    def _bytes(self) -> int:
        return sum(run.bytes for run in self._runs.values())
