"""Measurement: each system first searches its best setting, then all take turns, each in a fresh process."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from benchmarks.decode_peers.systems import PRECISIONS, Sentences, Setting
from benchmarks.decode_peers.texts import Text
from benchmarks.peers.environments import Environment
from benchmarks.peers.process import WorkerError, WorkerProcess, log
from benchmarks.peers.tables import setting_text

WORKER = "benchmarks.decode_peers.worker"
SEARCH_SECONDS = 8.0  # to try one setting, about
MIN_SENTENCES, MAX_SENTENCES = 64, 400  # to try a setting on
LATENCY_SENTENCES = 20
LATENCY_WARMUP = 2  # sentences before those

Name = tuple[str, str]  # system and precision


@dataclass
class Row:
    """The measurements of one system for one text and beam; `failure` is why there are none."""

    system: str
    precision: str
    text: str
    beam: int
    setting: Setting = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    outputs: Sentences = field(default_factory=list)
    peak: int | None = None
    bleu: float | None = None
    note: str = ""
    version: str = ""
    failure: str | None = None

    @property
    def name(self) -> Name:
        return self.system, self.precision

    @property
    def rate(self) -> float | None:
        """Target tokens per second, at the median of the rounds."""
        return self.tokens / statistics.median(self.seconds) if self.seconds else None


@dataclass
class Latency:
    """Median greedy latency of one sentence, to the first token and to the last, with the best setting."""

    first_token: float
    last_token: float
    first_setting: Setting
    last_setting: Setting


@dataclass
class Bench:
    """The systems that are compared, and how long each is measured."""

    folder: Path
    environments: dict[str, Environment]
    rounds: int
    patience: float  # seconds after which a system runs no further round

    def names(self) -> list[Name]:
        """Every system in each of its precisions."""
        return [(system, precision) for system in self.environments for precision in PRECISIONS[system]]

    def start_worker(self, name: Name) -> WorkerProcess:
        """Start a process for a system; raise WorkerError if it cannot take part."""
        environment = self.environments[name[0]]
        return WorkerProcess(WORKER, list(name), environment, self.folder, os.cpu_count() or 1)

    # -------------------------------------------------------------------------------------------- throughput
    def run(self, text: Text, beam: int) -> list[Row]:
        """Measure all systems on one text with one beam: search each one's setting, then take turns."""
        rows = {name: Row(*name, text.name, beam) for name in self.names()}
        for name, row in rows.items():
            with _record_failure(row):
                process = self.start_worker(name)
                try:
                    row.setting = self._search_setting(process, text, beam)
                finally:
                    process.close()
        with _workers(self, {name: row for name, row in rows.items() if not row.failure}) as workers:
            options = {"text": text.name, "beam": beam, "limit": text.limit}
            for name, process in list(workers.items()):
                with _record_failure(rows[name], workers):  # warm-up
                    sample = text.middle(MIN_SENTENCES)
                    process.call("translate", **options, indices=sample, setting=rows[name].setting)
            options["indices"] = list(range(len(text.sources)))
            for number in range(self.rounds):
                self._round(rows, workers, options, number)
            for name, process in list(workers.items()):
                with _record_failure(rows[name], workers):
                    rows[name].outputs = process.call("outputs")["outputs"]
                    for key, value in process.call("describe").items():
                        setattr(rows[name], key, value)
        return list(rows.values())

    def _round(
        self, rows: dict[Name, Row], workers: dict[Name, WorkerProcess], options: dict, number: int
    ) -> None:
        """Every system that has time left translates all sentences once."""
        names = [name for name in workers if sum(rows[name].seconds) < self.patience]
        first = number % max(1, len(names))  # rotate, so that no system always runs after the same one
        for name in names[first:] + names[:first]:
            with _record_failure(rows[name], workers):
                answer = workers[name].call("translate", **options, setting=rows[name].setting)
                rows[name].seconds.append(answer["seconds"])
                rows[name].tokens = answer["tokens"]
        rates_text = ", ".join(
            f"{' '.join(name)} {rate:.0f}" for name in workers if (rate := rows[name].rate) is not None
        )
        log(f"  round {number + 1}, target tokens/s: {rates_text}")

    def _search_setting(self, process: WorkerProcess, text: Text, beam: int) -> Setting:
        """The fastest setting on sentences of about the median length, as many as take a few seconds."""
        settings = process.call("settings")["many"]
        options = {"text": text.name, "beam": beam, "limit": text.limit}
        sample = text.middle(MIN_SENTENCES)
        process.call("translate", **options, indices=sample, setting=settings[0])  # warm-up
        seconds = process.call("translate", **options, indices=sample, setting=settings[0])["seconds"]
        count = int(min(MAX_SENTENCES, max(MIN_SENTENCES, len(sample) * SEARCH_SECONDS / seconds)))
        sample = text.middle(count)
        best_rates = {}
        for i, setting in enumerate(settings):
            if _same_as_before(settings[:i], setting, len(sample)):
                continue
            rates: list[float] = []
            elapsed = 0.0
            # Fast settings are tried up to three times, since short times are noisy.
            while len(rates) < 3 and elapsed < SEARCH_SECONDS / 2:
                answer = process.call("translate", **options, indices=sample, setting=setting)
                rates.append(answer["tokens"] / answer["seconds"])
                elapsed += answer["seconds"]
            best_rates[i] = max(rates)
        best = max(best_rates, key=best_rates.__getitem__)
        rates_text = ", ".join(f"{setting_text(settings[i])} {rate:.0f}" for i, rate in best_rates.items())
        log(
            f"  {process.name}, {len(sample)} sentences: {rates_text} tokens/s; "
            f"{setting_text(settings[best])} is the fastest"
        )
        return settings[best]

    # ----------------------------------------------------------------------------------------------- latency
    def latency(self, text: Text) -> dict[Name, Latency]:
        """Latency of single sentences of about the median length, greedy; all systems take each in turn."""
        rows = {name: Row(*name, text.name, 1) for name in self.names()}
        times: dict[tuple[Name, int, int], list[float]] = {}  # by system, setting and limit
        settings: dict[Name, list[Setting]] = {}
        with _workers(self, rows) as workers:
            for name, process in list(workers.items()):
                with _record_failure(rows[name], workers):
                    settings[name] = process.call("settings")["single"]
            sentences = [*text.middle(LATENCY_WARMUP), *text.middle(LATENCY_SENTENCES)]
            for number, sentence in enumerate(sentences):
                options = {"text": text.name, "indices": [sentence], "beam": 1}
                for name in list(workers):
                    with _record_failure(rows[name], workers):
                        for (i, setting), limit in product(enumerate(settings[name]), (1, text.limit)):
                            # The first call refills the CPU caches, which other systems used since.
                            workers[name].call("translate", **options, limit=limit, setting=setting)
                            answer = workers[name].call("translate", **options, limit=limit, setting=setting)
                            if number >= LATENCY_WARMUP:
                                times.setdefault((name, i, limit), []).append(answer["seconds"])
        latencies = {}
        for name in [name for name, row in rows.items() if not row.failure]:
            best = []
            for limit in (1, text.limit):
                medians = [statistics.median(times[name, i, limit]) for i in range(len(settings[name]))]
                best.append(min(zip(medians, range(len(medians)), strict=True)))
            (first, i), (last, j) = best
            latencies[name] = Latency(first, last, settings[name][i], settings[name][j])
        return latencies


@contextmanager
def _workers(bench: Bench, rows: dict[Name, Row]) -> Iterator[dict[Name, WorkerProcess]]:
    """One process per system, all running; those that are not measured wait for a command."""
    workers: dict[Name, WorkerProcess] = {}
    try:
        for name, row in rows.items():
            with _record_failure(row):
                workers[name] = bench.start_worker(name)
        yield workers
    finally:
        for process in workers.values():
            process.close()


@contextmanager
def _record_failure(row: Row, workers: dict[Name, WorkerProcess] | None = None) -> Iterator[None]:
    """Keep the error of a system in its row, and end its worker: the others continue."""
    try:
        yield
    except WorkerError as error:
        row.failure = str(error)
        log(f"  {row.system} {row.precision}: {error}")
        if workers is not None and row.name in workers:
            workers.pop(row.name).close()


def _same_as_before(tried: list[Setting], setting: Setting, count: int) -> bool:
    """True if a tried setting gives the same batches: batch sizes above `count` are all one batch."""
    size = setting.get("sentences", 0)
    limited = setting | {"sentences": min(size, count)}
    return bool(size) and any(
        limited == other | {"sentences": min(other["sentences"], count)} for other in tried
    )
