"""One thread that writes files while training continues, from copies that training cannot change."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

# Jobs that may wait or run: the best model and the checkpoint of one step. Each holds a copy of the weights.
ROOM = 2


class Background:
    """Run jobs in the order given. If one fails, the next call raises its error and the rest are dropped."""

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
