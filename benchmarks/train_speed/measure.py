"""How the numbers are taken: every system in its own process, all waiting but one, taking turns batch by batch."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.train_speed.environments import Place
from benchmarks.train_speed.task import Pairs, Task

OURS = "regard"
ROOT = Path(__file__).resolve().parents[2]


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
        """Tokens a second, with its best number of threads unless another is asked for."""
        threads = self.threads if threads is None else threads
        seconds = None if threads is None else self.pass_seconds(threads)
        return None if seconds is None else tokens / seconds


class Failed(Exception):
    """A worker said, or showed by ending, that its system cannot go on."""


class Process:
    """One worker, seen from the parent."""

    def __init__(self, system: str, precision: str, place: Place, folder: Path, threads: int) -> None:
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads), "PYTHONUTF8": "1"}
        environment |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
        self.said = (folder / f"{system.replace(' ', '-')}-{precision}.txt").open("w+", encoding="utf-8", errors="replace")
        self.running = subprocess.Popen(
            [str(place.python), "-m", "benchmarks.train_speed.worker", system, precision, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, encoding="utf-8", env=environment, cwd=ROOT,
        )  # fmt: skip

    def ask(self, do: str, **options: int) -> dict:
        assert self.running.stdin is not None and self.running.stdout is not None
        try:
            self.running.stdin.write(json.dumps({"do": do, **options}) + "\n")
            self.running.stdin.flush()
            line = self.running.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise Failed(self._last_words())
        answer = json.loads(line)
        if "trouble" in answer:
            raise Failed(answer["trouble"])
        return answer

    def _last_words(self) -> str:
        code = self.running.wait()
        self.said.seek(0)
        lines = [line.strip() for line in self.said if line.strip()]
        return f"ended with code {code}: {lines[-1][:200] if lines else 'it said nothing'}"

    def end(self) -> None:
        if self.running.stdin is not None:
            self.running.stdin.close()  # the worker's loop ends with its input
        try:
            self.running.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
        self.said.close()


def run(task: Task, places: dict[str, Place], precision: str, threads: list[int], seconds: float) -> list[Result]:
    """All systems in one precision: first they learn, then they are timed in turns."""
    results = {name: Result(name, precision, trouble=place.trouble) for name, place in places.items()}
    with tempfile.TemporaryDirectory(prefix="regard-train-speed-") as name:
        folder = Path(name)
        task.save(folder)
        processes: dict[str, Process] = {}
        try:
            for system, place in places.items():
                if place.python is not None:
                    processes[system] = Process(system, precision, place, folder, max(threads))
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
    """Nothing is timed here, so every core has a system of its own. Gives the systems that failed."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        learned = {system: pool.submit(_attempt, results[system], process, _learn) for system, process in processes.items()}
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
    say(f"{result.system}, {result.precision}: held-out loss {result.before:.3f}, after {steps} steps {result.after:.3f}")


def _tell(process: Process, result: Result) -> None:
    answer = process.ask("tell")
    result.parameters, result.peak, result.note = answer["parameters"], answer["peak"], answer["note"]


def _time(
    processes: dict[str, Process], results: dict[str, Result], timed: list[Pairs], threads: list[int], seconds: float
) -> None:
    """Passes over the batches, all taking each batch in turn, until each system had `seconds` with each number of threads."""
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
        told = ", ".join(
            f"{system} {found:.0f}"
            for system in processes
            if (found := results[system].rate(sum(pairs.labels for pairs in timed))) is not None
        )
        say(f"pass {passes}, {time.monotonic() - begun:.0f} s; target tokens/s so far: {told or 'the first pass only warms up'}")


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
            process = Process(system, precision, place, Path(name), threads)
            try:
                print(f"{system}, {precision}, {threads} threads\n{process.ask('profile', threads=threads, rows=rows)['table']}")
            except Failed as trouble:
                print(f"{system}: {trouble}")
            finally:
                process.end()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
