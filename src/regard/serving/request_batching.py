"""Dynamic batching: texts of concurrent requests with equal options share a batch.

A free worker takes what is waiting at once. While it computes, more texts arrive, so batches grow with the
load. The answer to a text does not depend on its batch.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from regard.serving.http_errors import RequestError, shutting_down
from regard.serving.metrics import ServerMetrics


class PendingRequest:
    """A request in the queue: its answers so far, the future of all of them, and its deadline."""

    def __init__(
        self,
        count: int,
        seconds: float = math.inf,
        on_answer: Callable[[int, Any], None] = lambda index, answer: None,
    ) -> None:
        self.on_answer = on_answer
        self.deadline = time.monotonic() + seconds
        self.answers: list[Any] = [None] * count
        self.future: Future[list[Any]] = Future()
        self._missing, self._lock = count, threading.Lock()

    @property
    def is_over(self) -> bool:
        """True if answered, cancelled or past its deadline. The search checks it at every step."""
        return self.future.done() or time.monotonic() >= self.deadline

    def set_answer(self, index: int, answer: Any) -> None:
        if time.monotonic() >= self.deadline:  # the search stops there, so the answer may be incomplete
            self.fail(TimeoutError("the deadline of the request has passed"))
            return
        self.on_answer(index, answer)
        with self._lock:
            self.answers[index] = answer
            self._missing -= 1
            if not self._missing:
                self._finish(lambda: self.future.set_result(self.answers))

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self._finish(lambda: self.future.set_exception(error))

    def _finish(self, set_result: Callable[[], None]) -> None:
        with contextlib.suppress(InvalidStateError):  # another text has failed, or the client has left
            set_result()


@dataclass(frozen=True)
class PendingText:
    """One text of a request in the queue."""

    request: PendingRequest
    index: int
    options: Any
    text: str


class Batcher:
    """A queue with worker threads. A worker takes waiting texts with equal options as one batch.

    Args:
        work: `work(options, texts, cancelled)` returns one answer per text; `cancelled` has one function per
            text that returns True when its answer is no longer needed.
        cost: `cost(options, text)` returns the tokens that a text adds to a batch.
        batch_tokens: tokens per batch.
        queue: maximum number of waiting texts.
        workers: number of threads.
        begin: called once in every thread.
    """

    def __init__(
        self,
        work: Callable[[Any, list[str], list[Callable[[], bool]]], Sequence[Any]],
        cost: Callable[[Any, str], int],
        *,
        batch_tokens: int,
        queue: int,
        workers: int = 1,
        begin: Callable[[], None] = lambda: None,
        metrics: ServerMetrics | None = None,
    ) -> None:
        self._work, self._cost, self._begin = work, cost, begin
        self._batch_tokens, self._queue, self._metrics = batch_tokens, queue, metrics or ServerMetrics()
        # Waiting texts by their options; the next group is first.
        self._groups: OrderedDict[Hashable, deque[PendingText]] = OrderedDict()
        self._waiting, self._closed = 0, False
        self._requests: weakref.WeakSet[PendingRequest] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"regard-worker-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of texts that no worker has taken yet."""
        return self._waiting

    def submit(
        self,
        options: Any,
        texts: list[str],
        seconds: float = math.inf,
        on_answer: Callable[[int, Any], None] = lambda index, answer: None,
    ) -> Future[list[Any]]:
        """Queue texts and return the future of all answers; cancelling it stops the work on them.

        A worker calls `on_answer(index, answer)` for every text as soon as it has the answer. After `seconds`
        the work stops, and the future raises TimeoutError.
        """
        request = PendingRequest(len(texts), seconds, on_answer)
        if not texts:
            request.future.set_result([])
            return request.future
        parts = [PendingText(request, i, options, text) for i, text in enumerate(texts)]
        with self._changed:
            if self._closed:
                raise shutting_down()
            if self._waiting + len(texts) > self._queue:
                full = f"{self._waiting} texts are waiting and the queue holds {self._queue}"
                raise RequestError(
                    429, f"{full}; try again in a second, or with fewer texts", {"retry-after": "1"}
                )
            self._groups.setdefault(options, deque()).extend(parts)
            self._waiting += len(texts)
            self._requests.add(request)
            self._changed.notify(len(parts))
        return request.future

    def cancel_all(self, error: Exception) -> None:
        """Fail all open requests; the work on them stops at its next step."""
        with self._changed:
            requests = list(self._requests)
        for request in requests:
            request.fail(error)

    def close(self, timeout: float | None = None) -> bool:
        """Refuse new texts and finish those that wait.

        Returns True if all workers ended within `timeout` seconds each.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        self._begin()
        while batch := self._collect():
            self._compute(batch)

    def _collect(self) -> list[PendingText]:
        """Return the next batch: the oldest texts of one group, up to `batch_tokens`; empty when closed."""
        while (group := self._next_group()) is not None:
            batch: list[PendingText] = []
            tokens = 0
            while tokens < self._batch_tokens and (part := self._take(group)):
                try:
                    tokens += self._cost(group, part.text)  # outside of the lock, as it tokenizes
                    batch.append(part)
                except Exception as error:
                    part.request.fail(error)
            if batch:
                return batch
        return []

    def _next_group(self) -> Hashable | None:
        """Wait for a text and return its group, in turn; None when closed."""
        with self._changed:
            while not self._groups and not self._closed:
                self._changed.wait()
            if not self._groups:
                return None
            group = next(iter(self._groups))
            self._groups.move_to_end(group)
            return group

    def _take(self, group: Hashable) -> PendingText | None:
        with self._changed:
            parts = self._groups.get(group, deque())
            while parts:
                part = parts.popleft()
                self._waiting -= 1
                if not parts:
                    del self._groups[group]
                if not part.request.is_over:
                    return part
            return None

    def _compute(self, batch: list[PendingText]) -> None:
        texts = [part.text for part in batch]
        begin = time.perf_counter()
        try:
            answers = self._work(batch[0].options, texts, [_is_over(part.request) for part in batch])
            if len(answers) != len(texts):
                raise AssertionError(f"{len(answers)} answers to {len(texts)} texts")
        except BaseException as error:
            if len(batch) == 1:
                batch[0].request.fail(error)
            else:  # compute each alone: an error is for its own request only
                for part in batch:
                    if not part.request.is_over:
                        self._compute([part])
            return
        self._metrics.batch_texts.observe(len(texts))
        self._metrics.batch_seconds.observe(time.perf_counter() - begin)
        for part, answer in zip(batch, answers, strict=True):
            part.request.set_answer(part.index, answer)


def _is_over(request: PendingRequest) -> Callable[[], bool]:
    return lambda: request.is_over
