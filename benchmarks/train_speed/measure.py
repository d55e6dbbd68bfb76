"""Measurement: every system in its own process; all take turns, batch by batch."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.environments import Place
from benchmarks.peers.process import Failed, Process, say
from benchmarks.train_speed.task import Pairs, Task

OURS = "regard"
WORKER = "benchmarks.train_speed.worker"


@dataclass
class Result:
    """What one system did in one precision. `trouble` is why there are no numbers."""

    system: str
    precision: str
    seconds: dict[int, list[list[float]]] = field(default_factory=dict)  # threads → batch → one time per pass
    before: float | None = None
    after: float | None = None
    parameters: int | None = None
    peak: int | None = None
    note: str = ""
    trouble: str | None = None

    def pass_seconds(self, threads: int) -> float | None:
        """The time of all batches, each at its median over the passes."""
        times = self.seconds.get(threads)
        return sum(statistics.median(one) for one in times) if times and all(times) else None

    @property
    def threads(self) -> int | None:
        """The number of threads it was fastest with."""
        timed = {n: found for n in self.seconds if (found := self.pass_seconds(n)) is not None}
        return min(timed, key=timed.__getitem__) if timed else None

    def rate(self, tokens: int, threads: int | None = None) -> float | None:
        """Tokens per second, with the best number of threads unless another is given."""
        threads = self.threads if threads is None else threads
        seconds = None if threads is None else self.pass_seconds(threads)
        return None if seconds is None else tokens / seconds


def run(
    task: Task, places: dict[str, Place], precision: str, threads: list[int], seconds: float
) -> list[Result]:
    """All systems in one precision: first they learn, then they are timed in turns."""
    results = {name: Result(name, precision, trouble=place.trouble) for name, place in places.items()}
    with tempfile.TemporaryDirectory(prefix="regard-train-speed-") as name:
        folder = Path(name)
        task.save(folder)
        processes: dict[str, Process] = {}
        try:
            for system, place in places.items():
                if place.python is not None:
                    processes[system] = Process(WORKER, [system, precision], place, folder, max(threads))
            for system in _learn_all(processes, results):
                processes.pop(system).end()
            _time(processes, results, task.timed, threads, seconds)
            for system, process in processes.items():
                _attempt(results[system], process, _tell)
        finally:
            for process in processes.values():
                process.end()
    return list(results.values())


def _learn_all(processes: dict[str, Process], results: dict[str, Result]) -> list[str]:
    """Nothing is timed here, so each core runs one system. Return the systems that failed."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        learned = {
            system: pool.submit(_attempt, results[system], process, _learn)
            for system, process in processes.items()
        }
    return [system for system, well in learned.items() if not well.result()]


def _attempt(result: Result, process: Process, what: Callable[[Process, Result], None]) -> bool:
    try:
        what(process, result)
    except Failed as trouble:
        result.trouble = str(trouble)
        say(f"{result.system}, {result.precision}: {trouble}")
        return False
    return True


def _learn(process: Process, result: Result) -> None:
    answer = process.ask("learn", threads=1)
    result.before, result.after = answer["before"], answer["after"]
    steps = len(answer["losses"])
    say(
        f"{result.system}, {result.precision}: held-out loss {result.before:.3f}, "
        f"after {steps} steps {result.after:.3f}"
    )


def _tell(process: Process, result: Result) -> None:
    answer = process.ask("tell")
    result.parameters, result.peak, result.note = answer["parameters"], answer["peak"], answer["note"]


def _time(
    processes: dict[str, Process],
    results: dict[str, Result],
    timed: list[Pairs],
    threads: list[int],
    seconds: float,
) -> None:
    """Pass over the batches, systems in turn, until each had `seconds` with each number of threads."""
    for system in processes:
        results[system].seconds = {n: [[] for _ in timed] for n in threads}
    begun, passes = time.monotonic(), 0
    while processes and (passes < 3 or time.monotonic() - begun < seconds * len(processes) * len(threads)):
        for batch in range(len(timed)):
            turns = [(system, n) for n in threads for system in processes]
            first = (passes + batch) % len(turns)  # nobody always follows the same neighbour
            for system, n in turns[first:] + turns[:first]:
                if system in processes:
                    _turn(processes, results[system], n, batch, warm=passes > 0)
        passes += 1
        rates_text = ", ".join(
            f"{system} {found:.0f}"
            for system in processes
            if (found := results[system].rate(sum(pairs.labels for pairs in timed))) is not None
        )
        say(
            f"pass {passes}, {time.monotonic() - begun:.0f} s; target tokens/s so far: "
            f"{rates_text or 'the first pass only warms up'}"
        )


def _turn(processes: dict[str, Process], result: Result, threads: int, batch: int, *, warm: bool) -> None:
    try:
        found = processes[result.system].ask("time", threads=threads, batch=batch)["seconds"]
    except Failed as trouble:
        result.trouble = str(trouble)
        say(f"{result.system}, {result.precision}: {trouble}")
        processes.pop(result.system).end()
        return
    if warm:
        result.seconds[threads][batch].append(found)


def profile(task: Task, places: dict[str, Place], precision: str, threads: int, rows: int) -> None:
    """Print where the time of one step goes, system by system."""
    with tempfile.TemporaryDirectory(prefix="regard-train-speed-") as name:
        task.save(Path(name))
        for system, place in places.items():
            if place.python is None:
                print(f"{system}: {place.trouble}")
                continue
            process = Process(WORKER, [system, precision], place, Path(name), threads)
            try:
                table = process.ask("profile", threads=threads, rows=rows)["table"]
                print(f"{system}, {precision}, {threads} threads\n{table}")
            except Failed as trouble:
                print(f"{system}: {trouble}")
            finally:
                process.end()
