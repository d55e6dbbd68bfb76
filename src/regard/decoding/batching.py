"""Continuous batching: sort by length, fill freed rows with waiting sentences, one worker per core."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.attention.intervening import with_interventions
from regard.data.encoding_workers import cores
from regard.data.tokenizer import EOS
from regard.decoding.beam import Beam
from regard.decoding.constraints import TokenConstraints
from regard.decoding.limits import Limits
from regard.decoding.search import Search
from regard.decoding.strategy import SearchTask, Strategy
from regard.files.progress import Progress, track

BATCH_TOKENS = {"cpu": 4096, "cuda": 1 << 16}  # a GPU needs about the same time for few and many sentences
PARALLEL_TOKENS = 4_000  # tokens × hypotheses from which on starting workers pays off


@dataclass(frozen=True)
class SearchJob:
    """How sentences are searched.

    Attributes:
        model: the autoregressive model or engine.
        start: encodes sentences; returns the decoder state and the first token of each.
        strategy: how tokens are chosen.
        constraints: the constraints that apply at each step.
        end: the end-of-sentence id; −1: none.
        equal_lengths: True if the inputs of a batch must have the same length.
    """

    model: Any
    start: Callable[[list[SearchTask]], tuple[Any, Tensor]]
    strategy: Strategy
    constraints: TokenConstraints
    end: int = EOS
    equal_lengths: bool = False

    def uses_own_search(self, tasks: list[SearchTask]) -> bool:
        """True if the model's own search can run this job: the GPU engine has one for plain beam search."""
        plain = type(self.strategy) is Beam and self.strategy.groups == 1
        free = not self.constraints.filters_tokens and not any(task.prefix for task in tasks)
        return plain and free and hasattr(self.model, "search")


class Queue:
    """The waiting sentences, longest first: if memory runs out, it does so at once; short ones come last."""

    def __init__(self, tasks: list[SearchTask], equal_lengths: bool) -> None:
        self._waiting = deque(sorted(tasks, key=lambda task: -len(task.input_ids)))
        self._equal_lengths = equal_lengths
        self._lock = threading.Lock()

    def take(self, capacity: int, minimum: int) -> list[SearchTask]:
        """Return the next sentences that, padded, fit into `capacity` tokens; at least `minimum` of them."""
        batch: list[SearchTask] = []
        longest = 0
        with self._lock:
            while self._waiting:
                task = self._waiting[0]
                if task.cancelled is not None and task.cancelled():
                    self._waiting.popleft()
                    continue
                longest = longest or size(task)
                if len(batch) >= minimum and (len(batch) + 1) * longest > capacity:
                    break
                if self._equal_lengths and size(task) != longest:
                    break
                batch.append(self._waiting.popleft())
        return batch


def size(task: SearchTask) -> int:
    """Return the number of input tokens, including the end-of-sentence token."""
    return len(task.input_ids) + 1


def search_all(tasks: list[SearchTask], job: SearchJob, limits: Limits, bar: Progress) -> None:
    """Search all tasks; their hypotheses are in `task.hypotheses` afterwards."""
    if not tasks:
        return
    rows = max(job.strategy.max_rows(task) for task in tasks)
    total = sum(map(size, tasks))
    workers = default_workers(job.model, total * rows) if limits.workers is None else limits.workers
    workers = min(len(tasks), workers)
    capacity = (limits.batch_tokens or BATCH_TOKENS.get(job.model.device.type, 4096)) // rows
    if workers > 1:
        capacity = min(capacity, -(-total // (2 * workers)))  # at least two batches per worker
    queue, stop = Queue(tasks, job.equal_lengths), threading.Event()
    work = _search_batches if job.uses_own_search(tasks) else _search_continuously

    def run() -> None:
        with torch.inference_mode():
            work(job, queue, capacity, bar, stop)

    with evaluation_mode(job.model):
        if workers <= 1:
            run()
        else:
            run_workers(run, workers, stop)


def default_workers(model: Any, amount: int) -> int:
    """Return 1 for a GPU or little work, else the number of cores that torch may use."""
    if model.device.type != "cpu" or amount < PARALLEL_TOKENS:
        return 1
    return max(1, min(torch.get_num_threads(), cores()))


def _search_continuously(
    job: SearchJob, queue: Queue, capacity: int, bar: Progress, stop: threading.Event
) -> None:
    """Step one batch until the queue is empty; sentences enter when a quarter of the batch is free."""
    search = Search(job.model, job.strategy, job.constraints, job.end)
    used = 0
    while not stop.is_set():
        # Adding a few sentences costs as much as adding many.
        if not search or (job.model.can_join and 4 * (capacity - used) >= capacity):
            batch = queue.take(capacity - used, 0 if search else 1)
            if batch:
                search.add(batch, *job.start(batch))
                used += sum(map(size, batch))
            elif not search:
                return
        done = search.step()
        if done:
            used -= sum(map(size, done))
            bar.advance(len(done))


def _search_batches(
    job: SearchJob, queue: Queue, capacity: int, bar: Progress, stop: threading.Event
) -> None:
    """Pass one batch after the other to the model's own search."""
    while not stop.is_set():
        batch = queue.take(capacity, 1)
        if not batch:
            return
        job.model.search(batch, *job.start(batch), job.strategy, job.end)
        bar.advance(len(batch))


def run_workers(work: Callable[[], None], workers: int, stop: threading.Event) -> None:
    """Run `work` in several threads, one core each; an error or Ctrl-C stops all of them.

    Threads are enough, since torch and the engine release the GIL. They are not daemon threads: Python kills
    those at exit, and a thread that is freeing a tensor at that moment aborts the process.
    """
    work = with_interventions(work)
    errors: list[BaseException] = []
    # Not Thread.join: when Ctrl-C interrupts it, Python 3.11 regards a running thread as ended.
    ended = [threading.Event() for _ in range(workers)]

    def guarded(event: threading.Event) -> None:
        try:
            torch.set_num_threads(1)
            work()
        except BaseException as error:  # raised again in the calling thread
            errors.append(error)
            stop.set()
        finally:
            event.set()

    threads = [threading.Thread(target=guarded, args=(event,)) for event in ended]
    threads_before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for thread in threads:
            thread.start()
        for event in ended:
            while not event.wait(0.1):  # with a timeout, so that Ctrl-C is noticed
                pass
    finally:
        stop.set()
        for thread, event in zip(threads, ended, strict=True):
            if thread.ident is not None:  # it was started
                event.wait()
        torch.set_num_threads(threads_before)
    if errors:
        raise errors[0]


def progress_bar(visible: bool, total: int, name: str, unit: str) -> AbstractContextManager[Progress]:
    """Return a progress bar; if not visible, one that only counts."""
    bar = track(total, name, unit)
    return bar if visible else nullcontext(bar)


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Put the model into evaluation mode inside the block."""
    training = getattr(model, "training", False)
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()
