"""Measurement: each system first searches its best setting, then all take turns, each in a fresh process."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.decode_peers.systems import PRECISIONS, Sentences, Setting
from benchmarks.decode_peers.texts import Text
from benchmarks.peers.environments import Place
from benchmarks.peers.process import Failed, Process, say

WORKER = "benchmarks.decode_peers.worker"
SEARCH_SECONDS = 8.0  # for one setting, about
FEWEST, MOST = 64, 400  # sentences that a setting is tried on
ALONE = 20  # sentences whose latency is measured

Name = tuple[str, str]  # system and precision


@dataclass
class Row:
    """What one system did with one text and beam. `trouble` is why there are no numbers."""

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
    trouble: str | None = None

    @property
    def name(self) -> Name:
        return self.system, self.precision

    @property
    def rate(self) -> float | None:
        """Target tokens a second, at the median of the rounds."""
        return self.tokens / statistics.median(self.seconds) if self.seconds else None


@dataclass
class Latency:
    """Median greedy latency of one sentence, to the first token and to the end, with the best threads."""

    first: float
    whole: float
    first_setting: Setting
    whole_setting: Setting


@dataclass
class Bench:
    """The systems that take part, and how long they are measured."""

    folder: Path
    places: dict[str, Place]
    rounds: int
    patience: float  # seconds: who has used so many needs no further round

    def names(self) -> list[Name]:
        return [(system, precision) for system in self.places for precision in PRECISIONS[system]]

    @contextmanager
    def process(self, name: Name) -> Iterator[Process]:
        place = self.places[name[0]]
        if place.python is None:
            raise Failed(place.trouble)
        process = Process(WORKER, list(name), place, self.folder, os.cpu_count() or 1)
        try:
            yield process
        finally:
            process.end()

    # ---------------------------------------------------------------------------------------- many sentences
    def run(self, text: Text, beam: int) -> list[Row]:
        """All systems on one text with one beam."""
        rows = {name: Row(*name, text.name, beam) for name in self.names()}
        for name, row in rows.items():
            with _trouble(row), self.process(name) as process:
                row.setting = self._search(process, text, beam)
        with _together(self, {name: row for name, row in rows.items() if not row.trouble}) as under_way:
            everything = {
                "text": text.name,
                "which": list(range(len(text.sources))),
                "beam": beam,
                "limit": text.limit,
            }
            for name, process in list(under_way.items()):
                with _trouble(rows[name], under_way):  # caches, pages, threads
                    process.ask(
                        "translate", **everything | {"which": text.middle(FEWEST)}, setting=rows[name].setting
                    )
            for turn in range(self.rounds):
                self._round(rows, under_way, everything, turn)
            for name, process in list(under_way.items()):
                with _trouble(rows[name], under_way):
                    rows[name].outputs = process.ask("outputs")["outputs"]
                    for key, value in process.ask("tell").items():
                        setattr(rows[name], key, value)
        return list(rows.values())

    def _round(
        self, rows: dict[Name, Row], under_way: dict[Name, Process], everything: dict, turn: int
    ) -> None:
        waiting = [name for name in under_way if sum(rows[name].seconds) < self.patience]
        shift = turn % max(1, len(waiting))  # nobody always follows the same neighbour
        for name in waiting[shift:] + waiting[:shift]:
            with _trouble(rows[name], under_way):
                answer = under_way[name].ask("translate", **everything, setting=rows[name].setting)
                rows[name].seconds.append(answer["seconds"])
                rows[name].tokens = answer["tokens"]
        rates_text = ", ".join(
            f"{' '.join(name)} {rate:.0f}" for name in under_way if (rate := rows[name].rate) is not None
        )
        say(f"  round {turn + 1}, target tokens/s: {rates_text}")

    def _search(self, process: Process, text: Text, beam: int) -> Setting:
        """The fastest setting on sentences of about the median length, as many as take a few seconds."""
        settings = process.ask("settings")["many"]
        options = {"text": text.name, "beam": beam, "limit": text.limit}
        few = text.middle(FEWEST)
        process.ask("translate", **options, which=few, setting=settings[0])  # warms up
        seconds = process.ask("translate", **options, which=few, setting=settings[0])["seconds"]
        count = int(min(MOST, max(FEWEST, len(few) * SEARCH_SECONDS / seconds)))
        which, rates = text.middle(count), {}
        for i, setting in enumerate(settings):
            if _same_as_before(settings[:i], setting, len(which)):
                continue
            found: list[float] = []
            spent = 0.0
            while (
                len(found) < 3 and spent < SEARCH_SECONDS / 2
            ):  # the quick ones several times: chance decides less
                answer = process.ask("translate", **options, which=which, setting=setting)
                found.append(answer["tokens"] / answer["seconds"])
                spent += answer["seconds"]
            rates[i] = max(found)
        best = max(rates, key=rates.__getitem__)
        rates_text = ", ".join(f"{_brief(settings[i])} {rate:.0f}" for i, rate in rates.items())
        say(
            f"  {process.name}, {len(which)} sentences: {rates_text} tokens/s; "
            f"{_brief(settings[best])} is the fastest"
        )
        return settings[best]

    # ----------------------------------------------------------------------------------------- one sentence
    def latency(self, text: Text) -> dict[Name, Latency]:
        """Single sentences of about the median length, greedy; all systems take each in turn."""
        rows = {name: Row(*name, text.name, 1) for name in self.names()}
        times: dict[tuple[Name, int, int], list[float]] = {}  # by system, setting and limit
        settings: dict[Name, list[Setting]] = {}
        with _together(self, rows) as under_way:
            for name, process in list(under_way.items()):
                with _trouble(rows[name], under_way):
                    settings[name] = process.ask("settings")["alone"]
            for nth, sentence in enumerate([*text.middle(2), *text.middle(ALONE)]):
                for name in list(under_way):
                    for i, setting in enumerate(settings[name]):
                        for limit in (1, text.limit):
                            with _trouble(rows[name], under_way):
                                options = {"text": text.name, "which": [sentence], "beam": 1, "limit": limit}
                                # The others had the caches.
                                under_way[name].ask("translate", **options, setting=setting)
                                answer = under_way[name].ask("translate", **options, setting=setting)
                                if nth >= 2:
                                    times.setdefault((name, i, limit), []).append(answer["seconds"])
        found = {}
        for name in [name for name, row in rows.items() if not row.trouble]:
            best = []
            for limit in (1, text.limit):
                medians = [statistics.median(times[name, i, limit]) for i in range(len(settings[name]))]
                best.append(min(zip(medians, range(len(medians)), strict=True)))
            (first, i), (whole, j) = best
            found[name] = Latency(first, whole, settings[name][i], settings[name][j])
        return found


@contextmanager
def _together(bench: Bench, rows: dict[Name, Row]) -> Iterator[dict[Name, Process]]:
    """One process per system; all wait except the one that is measured."""
    under_way: dict[Name, Process] = {}
    try:
        for name, row in rows.items():
            place = bench.places[name[0]]
            if place.python is None:
                row.trouble = place.trouble
            else:
                under_way[name] = Process(WORKER, list(name), place, bench.folder, os.cpu_count() or 1)
        yield under_way
    finally:
        for process in under_way.values():
            process.end()


@contextmanager
def _trouble(row: Row, under_way: dict[Name, Process] | None = None) -> Iterator[None]:
    """A system that fails is out of this row, and the row says why."""
    try:
        yield
    except Failed as trouble:
        row.trouble = str(trouble)
        say(f"  {row.system} {row.precision}: {trouble}")
        if under_way is not None and row.name in under_way:
            under_way.pop(row.name).end()


def _same_as_before(tried: list[Setting], setting: Setting, count: int) -> bool:
    """Batches that hold all sentences anyway are the same batch."""
    size = setting.get("sentences", 0)
    cut = setting | {"sentences": min(size, count)}
    return bool(size) and any(cut == one | {"sentences": min(one["sentences"], count)} for one in tried)


def _brief(setting: Setting) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.items())
