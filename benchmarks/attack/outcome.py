"""The outcome of an attack: one line of the table, and its failures with the command that repeats each."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from regard.files.progress import Progress, track


class Plan(NamedTuple):
    """How a part is run. `only` repeats a single case of it."""

    seed: int
    quick: bool
    folder: Path
    only: int | None = None

    def draw(self, part: str, number: int) -> random.Random:
        """The random generator of one case, independent of the cases before it."""
        return random.Random(f"{self.seed}/{part}/{number}")

    def numbers(self, count: int) -> list[int]:
        """The cases to run."""
        return list(range(count)) if self.only is None else [self.only]


@dataclass
class Outcome:
    """One kind of attack: how many there were, what failed, how long it took."""

    what: str
    part: str
    count: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    note: str = ""

    def failed(self, number: int, why: str, seed: int) -> None:
        """Keep a failure on one line, with the command that repeats it."""
        again = f"python -m benchmarks.attack --part {self.part} --seed {seed} --only {number}"
        self.failures.append(f"{self.what}: {' '.join(why.split())[:400]}  [{again}]")


@contextmanager
def attacking(what: str, part: str, total: int, unit: str) -> Iterator[tuple[Outcome, Progress]]:
    """Yield an outcome, whose seconds are set at the end, and a progress bar of `total` attacks."""
    outcome, start = Outcome(what, part), time.monotonic()
    try:
        with track(total, what, unit) as progress:
            yield outcome, progress
    finally:
        outcome.seconds = time.monotonic() - start


def table(outcomes: list[Outcome]) -> str:
    """What was attacked, how often, failures and seconds, as a Markdown table."""
    rows = [("attack", "how many", "failures", "seconds", "")]
    rows += [(o.what, f"{o.count:,}", str(len(o.failures)), f"{o.seconds:.0f}", o.note) for o in outcomes]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)
