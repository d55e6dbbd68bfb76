"""Measurement: every system in its own process; all take turns, batch by batch."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.environments import Environment
from benchmarks.peers.process import WorkerError, WorkerProcess, log
from benchmarks.train_speed.task import Pairs, Task

OURS = "regard"
WORKER = "benchmarks.train_speed.worker"


@dataclass
class Result:
    """The measurements of one system in one precision; `failure` is why there are none."""

    system: str
    precision: str
    seconds: dict[int, list[list[float]]] = field(default_factory=dict)  # threads → batch → one time per pass
    before: float | None = None
    after: float | None = None
    parameters: int | None = None
    peak: int | None = None
    note: str = ""
    failure: str | None = None

    def pass_seconds(self, threads: int) -> float | None:
        """Seconds for one pass over the batches, each batch at its median over the passes."""
        times = self.seconds.get(threads)
        return sum(statistics.median(batch) for batch in times) if times and all(times) else None

    @property
    def threads(self) -> int | None:
        """The number of threads with which it was fastest."""
        seconds = {n: total for n in self.seconds if (total := self.pass_seconds(n)) is not None}
        return min(seconds, key=seconds.__getitem__) if seconds else None

    def rate(self, tokens: int, threads: int | None = None) -> float | None:
        """Tokens per second, with the best number of threads unless another is given."""
        threads = self.threads if threads is None else threads
        seconds = None if threads is None else self.pass_seconds(threads)
        return None if seconds is None else tokens / seconds


def run(
    task: Task, environments: dict[str, Environment], precision: str, threads: list[int], seconds: float
) -> list[Result]:
    """Measure all systems in one precision: first they train, then they are timed in turns."""
    results = {system: Result(system, precision) for system in environments}
    with tempfile.TemporaryDirectory(prefix="regard-train-speed-") as name:
        folder = Path(name)
        task.save(folder)
        processes: dict[str, WorkerProcess] = {}
        try:
            for system, environment in environments.items():
                with _record_failure(results[system]):
                    arguments = [system, precision]
                    processes[system] = WorkerProcess(WORKER, arguments, environment, folder, max(threads))
            for system in _train_all(processes, results):
                processes.pop(system).close()
            _time(processes, results, task.timed, threads, seconds)
            for system, process in processes.items():
                with _record_failure(results[system]):
                    _describe(process, results[system])
        finally:
            for process in processes.values():
                process.close()
    return list(results.values())


def _train_all(processes: dict[str, WorkerProcess], results: dict[str, Result]) -> list[str]:
    """Train all systems, one per core, since nothing is timed yet. Return those that failed."""
    trainings = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for system, process in processes.items():
            trainings.append(pool.submit(_train, process, results[system]))
    for training in trainings:
        training.result()  # raises what is not a WorkerError
    return [system for system in processes if results[system].failure is not None]


def _train(process: WorkerProcess, result: Result) -> None:
    """Train one system, and note its held-out loss before and after."""
    with _record_failure(result):
        answer = process.call("train", threads=1)
        result.before, result.after = answer["before"], answer["after"]
        steps = len(answer["losses"])
        log(
            f"{result.system}, {result.precision}: held-out loss {result.before:.3f}, "
            f"after {steps} steps {result.after:.3f}"
        )


@contextmanager
def _record_failure(result: Result) -> Iterator[None]:
    """Keep the error of a system in its result: the others continue."""
    try:
        yield
    except WorkerError as error:
        result.failure = str(error)
        log(f"{result.system}, {result.precision}: {error}")


def _describe(process: WorkerProcess, result: Result) -> None:
    answer = process.call("describe")
    result.parameters, result.peak, result.note = answer["parameters"], answer["peak"], answer["note"]


def _time(
    processes: dict[str, WorkerProcess],
    results: dict[str, Result],
    timed: list[Pairs],
    threads: list[int],
    seconds: float,
) -> None:
    """Pass over the batches, systems in turn, until each had `seconds` with each number of threads."""
    for system in processes:
        results[system].seconds = {n: [[] for _ in timed] for n in threads}
    start, passes = time.monotonic(), 0
    while processes and (passes < 3 or time.monotonic() - start < seconds * len(processes) * len(threads)):
        for batch in range(len(timed)):
            turns = [(system, n) for n in threads for system in processes]
            first = (passes + batch) % len(turns)  # rotate: no system always runs after the same one
            for system, n in turns[first:] + turns[:first]:
                if system in processes:
                    _time_step(processes, results[system], n, batch, warm=passes > 0)
        passes += 1
        rates_text = ", ".join(
            f"{system} {rate:.0f}"
            for system in processes
            if (rate := results[system].rate(sum(pairs.labels for pairs in timed))) is not None
        )
        log(
            f"pass {passes}, {time.monotonic() - start:.0f} s; target tokens/s so far: "
            f"{rates_text or 'the first pass only warms up'}"
        )


def _time_step(
    processes: dict[str, WorkerProcess], result: Result, threads: int, batch: int, *, warm: bool
) -> None:
    """One training step of one system; the first pass warms up and is not counted."""
    with _record_failure(result):
        answer = processes[result.system].call("time", threads=threads, batch=batch)
        if warm:
            result.seconds[threads][batch].append(answer["seconds"])
    if result.failure is not None:
        processes.pop(result.system).close()


def profile(
    task: Task, environments: dict[str, Environment], precision: str, threads: int, rows: int
) -> None:
    """Print where the time of one step goes, system by system."""
    with tempfile.TemporaryDirectory(prefix="regard-train-speed-") as name:
        task.save(Path(name))
        for system, environment in environments.items():
            try:
                process = WorkerProcess(WORKER, [system, precision], environment, Path(name), threads)
                try:
                    table = process.call("profile", threads=threads, rows=rows)["table"]
                finally:
                    process.close()
                print(f"{system}, {precision}, {threads} threads\n{table}")
            except WorkerError as error:
                print(f"{system}: {error}")
