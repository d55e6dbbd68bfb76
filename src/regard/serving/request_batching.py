"""Texts of requests that come at the same time are computed together; each gets the answer it would get alone.

Nothing waits for company: a worker that is free takes what has come. While it computes, others gather: batches grow with the load.
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

from regard.serving.metrics import Metrics
from regard.serving.request_limits import Refusal, draining


class Ticket:
    """One request: its answers as they come in, the promise of all of them, and when they are too late."""

    def __init__(
        self,
        count: int,
        seconds: float = math.inf,
        each: Callable[[int, Any], None] = lambda at, answer: None,
    ) -> None:
        self.each = each  # told of every answer when it is there
        self.until = time.monotonic() + seconds
        self.answers: list[Any] = [None] * count
        self.promise: Future[list[Any]] = Future()
        self._open, self._lock = count, threading.Lock()

    @property
    def over(self) -> bool:
        """Answered, too late, or nobody waits any more. Asked by the search at every step."""
        return self.promise.done() or time.monotonic() >= self.until

    def keep(self, at: int, answer: Any) -> None:
        self.each(at, answer)
        with self._lock:
            self.answers[at] = answer
            self._open -= 1
            if not self._open:
                self._settle(lambda: self.promise.set_result(self.answers))

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self._settle(lambda: self.promise.set_exception(error))

    def _settle(self, how: Callable[[], None]) -> None:
        with contextlib.suppress(InvalidStateError):  # another part has failed, or the client has left
            how()


@dataclass(frozen=True)
class Part:
    """One text of a ticket."""

    ticket: Ticket
    at: int
    options: Any
    text: str


class Batcher:
    """Workers that take waiting parts with the same options, up to a batch of tokens, and compute them with one call of `work`.

    `work(options, texts, cancelled)` gets a function for each text that says whether to go on with it.
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
        metrics: Metrics | None = None,
    ) -> None:
        self._work, self._cost, self._begin = work, cost, begin
        self._batch_tokens, self._queue, self._metrics = batch_tokens, queue, metrics or Metrics()
        self._groups: OrderedDict[Hashable, deque[Part]] = (
            OrderedDict()
        )  # waiting parts by options; the next group is first
        self._waiting, self._closed = 0, False
        self._tickets: weakref.WeakSet[Ticket] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=f"regard-worker-{i}", daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Texts that no worker has taken yet."""
        return self._waiting

    def submit(
        self,
        options: Any,
        texts: list[str],
        seconds: float = math.inf,
        each: Callable[[int, Any], None] = lambda at, answer: None,
    ) -> Future[list[Any]]:
        """Queue texts, beside those with equal options. The promise is of all answers; cancel it, and work on it stops.

        `each` is called by a worker with the place and answer of every text, as they are found.
        """
        ticket = Ticket(len(texts), seconds, each)
        if not texts:
            ticket.promise.set_result([])
            return ticket.promise
        parts = [Part(ticket, i, options, text) for i, text in enumerate(texts)]
        with self._changed:
            if self._closed:
                raise draining()
            if self._waiting + len(texts) > self._queue:
                full = f"{self._waiting} texts are waiting and the queue holds {self._queue}"
                raise Refusal(
                    429, f"{full}; try again in a second, or with fewer texts", {"retry-after": "1"}
                )
            self._groups.setdefault(options, deque()).extend(parts)
            self._waiting += len(texts)
            self._tickets.add(ticket)
            self._changed.notify(len(parts))
        return ticket.promise

    def cancel_all(self, error: Exception) -> None:
        """Answer everything that is open with an error; work on it stops at its next step."""
        with self._changed:
            tickets = list(self._tickets)
        for ticket in tickets:
            ticket.fail(error)

    def close(self, timeout: float | None = None) -> bool:
        """Take nothing more and finish what waits. Whether all workers have ended, within `timeout` seconds for each."""
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

    def _collect(self) -> list[Part]:
        """The next batch: parts of one group, oldest first, until they cost a batch of tokens. Empty when all is over."""
        while (group := self._next_group()) is not None:
            batch: list[Part] = []
            tokens = 0
            while tokens < self._batch_tokens and (part := self._take(group)):
                try:
                    tokens += self._cost(group, part.text)  # outside of the lock: it reads the text
                    batch.append(part)
                except Exception as error:
                    part.ticket.fail(error)
            if batch:
                return batch
        return []

    def _next_group(self) -> Hashable | None:
        """Waits until there is something to do; groups take turns. None when all is over."""
        with self._changed:
            while not self._groups and not self._closed:
                self._changed.wait()
            if not self._groups:
                return None
            group = next(iter(self._groups))
            self._groups.move_to_end(group)
            return group

    def _take(self, group: Hashable) -> Part | None:
        with self._changed:
            parts = self._groups.get(group, deque())
            while parts:
                part = parts.popleft()
                self._waiting -= 1
                if not parts:
                    del self._groups[group]
                if not part.ticket.over:
                    return part
            return None

    def _compute(self, batch: list[Part]) -> None:
        texts = [part.text for part in batch]
        begin = time.perf_counter()
        try:
            answers = self._work(batch[0].options, texts, [_over(part.ticket) for part in batch])
            if len(answers) != len(texts):
                raise AssertionError(f"{len(answers)} answers to {len(texts)} texts")
        except BaseException as error:
            if len(batch) == 1:
                batch[0].ticket.fail(error)
            else:  # one request must not spoil its neighbours'
                for part in batch:
                    if not part.ticket.over:
                        self._compute([part])
            return
        self._metrics.batch_texts.observe(len(texts))
        self._metrics.batch_seconds.observe(time.perf_counter() - begin)
        for part, answer in zip(batch, answers, strict=True):
            part.ticket.keep(part.at, answer)


def _over(ticket: Ticket) -> Callable[[], bool]:
    return lambda: ticket.over
