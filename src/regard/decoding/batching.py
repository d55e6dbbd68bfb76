"""Many sentences through one search: batches of like length, sentences that enter as others leave, workers side by side."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenizer import EOS
from regard.decoding.beam import Beam
from regard.decoding.constraints import Constraints
from regard.decoding.search import Search
from regard.decoding.strategy import SearchTask, Strategy
from regard.files.progress import Progress, track

Begin = Callable[
    [list[SearchTask]], tuple[Any, Tensor]
]  # sentences → what the writer carries for them, and their first tokens
BATCH_TOKENS = {"cpu": 4096, "cuda": 1 << 16}  # a GPU takes about as long for many sentences as for few
BIG = 4_000  # tokens × texts: from here on workers are worth their start


class Queue:
    """Sentences that wait, longest first: memory runs out at once if at all, and the short ones fill the end evenly."""

    def __init__(self, tasks: list[SearchTask], alike: bool) -> None:
        self._waiting = deque(sorted(tasks, key=lambda task: -len(task.given)))
        self._alike = alike  # whether the sentences of a batch must have one length
        self._lock = threading.Lock()

    def take(self, room: int, least: int) -> list[SearchTask]:
        """The next sentences that, padded to one length, fit into `room` tokens; at least so many of them."""
        batch: list[SearchTask] = []
        with self._lock:
            while self._waiting:
                if (cancelled := self._waiting[0].cancelled) is not None and cancelled():
                    self._waiting.popleft()
                    continue
                longest = cost(batch[0] if batch else self._waiting[0])
                if len(batch) >= least and (len(batch) + 1) * longest > room:
                    break
                if batch and self._alike and len(batch[0].given) != len(self._waiting[0].given):
                    break
                batch.append(self._waiting.popleft())
        return batch


def cost(task: SearchTask) -> int:
    return len(task.given) + 1


def search_all(
    writer: Any,
    tasks: list[SearchTask],
    begin: Begin,
    strategy: Strategy,
    bar: Progress,
    *,
    rules: Constraints | None = None,
    end: int = EOS,
    batch_tokens: int | None = None,
    workers: int | None = None,
    alike: bool = False,
) -> None:
    """Find the texts of all tasks."""
    texts = max((strategy.most_rows(task) for task in tasks), default=1)
    total = sum(map(cost, tasks))
    workers = min(len(tasks), default_workers(writer, total * texts) if workers is None else workers)
    room = (batch_tokens or BATCH_TOKENS.get(writer.device.type, 4096)) // texts
    if workers > 1:
        room = min(room, -(-total // (2 * workers)))  # everybody has something to do
    queue, stop = Queue(tasks, alike), threading.Event()

    def work() -> None:
        with torch.inference_mode():
            if isinstance(strategy, Beam) and searches_itself(writer, tasks, strategy, rules):
                _hand_over(writer, strategy, end, queue, begin, room, bar, stop)
                return
            _work(Search(writer, strategy, rules, end), queue, begin, room, bar, stop)

    with reading(writer):
        if workers <= 1:
            work()
        else:
            run_workers(work, workers, stop)


def default_workers(writer: Any, amount: int) -> int:
    """One for a GPU or for little work, else one for each core that torch may use."""
    if writer.device.type != "cpu" or amount < BIG:
        return 1
    return max(
        1,
        min(
            torch.get_num_threads(),
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1 << 10,
        ),
    )


def _work(
    search: Search, queue: Queue, begin: Begin, room: int, bar: Progress, stop: threading.Event
) -> None:
    used = 0
    while not stop.is_set():
        if not search or (
            search.writer.joins and 4 * (room - used) >= room
        ):  # a few at a time would cost as much as many
            batch = queue.take(room - used, 0 if search else 1)
            if batch:
                search.add(batch, *begin(batch))
                used += sum(map(cost, batch))
            elif not search:
                return
        done = search.step()
        if done:
            used -= sum(map(cost, done))
            bar.advance(len(done))


def searches_itself(
    writer: Any, tasks: list[SearchTask], strategy: Strategy, rules: Constraints | None
) -> bool:
    """Whether the writer has a search of its own for this: an engine on a GPU has one for plain beams."""
    plain = (
        type(strategy) is Beam
        and strategy.groups == 1
        and not rules
        and not any(task.prefix for task in tasks)
    )
    return plain and hasattr(writer, "search")


def _hand_over(
    writer: Any,
    beam: Beam,
    end: int,
    queue: Queue,
    begin: Begin,
    room: int,
    bar: Progress,
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        batch = queue.take(room, 1)
        if not batch:
            return
        writer.search(batch, *begin(batch), beam, end)
        bar.advance(len(batch))


def run_workers(work: Callable[[], None], workers: int, stop: threading.Event) -> None:
    """Threads of one core each: torch and the engine compute without Python's lock. An error or Ctrl-C stops them all."""
    errors: list[BaseException] = []
    # Not Thread.join: when Ctrl-C interrupts it, Python 3.11 takes a running thread for an ended one.
    ended = [threading.Event() for _ in range(workers)]

    def guarded(mine: threading.Event) -> None:
        try:
            torch.set_num_threads(1)
            work()
        except BaseException as error:  # raised again where it can be seen
            errors.append(error)
            stop.set()
        finally:
            mine.set()

    threads, before = (
        [threading.Thread(target=guarded, args=(event,), daemon=True) for event in ended],
        torch.get_num_threads(),
    )
    try:
        torch.set_num_threads(1)
        for thread in threads:
            thread.start()
        for event in ended:
            while not event.wait(0.1):  # now and then, so that Ctrl-C is noticed
                pass
    finally:
        stop.set()
        for thread, event in zip(threads, ended, strict=True):
            if thread.ident is not None:  # it was started
                event.wait()
        torch.set_num_threads(before)
    if errors:
        raise errors[0]


def show(progress: bool, total: int, what: str, unit: str) -> AbstractContextManager[Progress]:
    """A bar that is seen, or one that only counts."""
    bar = track(total, what, unit)
    return bar if progress else nullcontext(bar)


@contextmanager
def reading(writer: Any) -> Iterator[None]:
    """Without dropout, and as it was afterwards."""
    training = getattr(writer, "training", False)
    if training:
        writer.eval()
    try:
        yield
    finally:
        if training:
            writer.train()
