"""One thread that writes while training goes on. What it writes was copied before, so training cannot change it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

ROOM = 2  # jobs that may wait or run: a best model and a checkpoint of the same step; each holds copies of the weights


class Background:
    """Jobs one after the other, in the order they were given; an error of one is raised by the next call, and drops the rest."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def start(self, job: Callable[[], None]) -> None:
        """Run `job` beside the training, after those before; waits while there are too many."""
        self._until(ROOM - 1)
        with self._changed:
            self._jobs.append(job)
            if self._thread is None:
                # A process that is told to stop at once does not wait for it; folders are whole or not there.
                self._thread = threading.Thread(target=self._work, name="regard-writer", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Until all is done."""
        self._until(0)

    def _until(self, most: int) -> None:
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
