"""A background thread that writes files while training continues."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

# The best model and the checkpoint of one step. A job holds a copy of the weights, so more would cost memory.
MAX_JOBS = 2


class Background:
    """Runs jobs in the order given. If one fails, the next call raises its error and the rest are dropped."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def start(self, job: Callable[[], None]) -> None:
        """Queue `job`; blocks while MAX_JOBS are queued or running."""
        self._wait_for(MAX_JOBS - 1)
        with self._changed:
            self._jobs.append(job)
            if self._thread is None:
                # Not a daemon thread, so that Python waits for it at exit: see run_workers in batching.py.
                self._thread = threading.Thread(target=self._work, name="regard-writer")
                self._thread.start()

    def wait(self) -> None:
        """Wait until all jobs are done."""
        self._wait_for(0)

    def _wait_for(self, most: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._jobs) <= most)
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs[0]
            try:
                job()
                failed = None
            except BaseException as error:  # handed to the main thread
                failed = error
            with self._changed:
                self._jobs.popleft()
                if failed is not None:
                    self._error = failed
                    self._jobs.clear()
                self._changed.notify_all()
