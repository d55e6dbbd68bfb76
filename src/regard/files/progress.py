"""Progress of long work: a bar on a terminal, occasional lines elsewhere, nothing if it finishes quickly."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

QUICK = 2.0  # seconds that pass before anything is shown
PAUSE = 10.0  # seconds between plain lines


class Progress:
    """Work of a known or unknown amount; `advance` counts it. What is shown goes to standard error.

    A thread wakes up after two seconds, so work that reports nothing for a while is seen too.
    """

    def __init__(self, total: int | None, what: str, unit: str) -> None:
        self.total, self.what, self.unit, self.done = total, what, unit, 0
        self._begin = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="regard-progress", daemon=True)

    def advance(self, count: int = 1) -> None:
        self.done += count

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def line(self) -> str:
        """The state in words: how much, how fast, how long still."""
        seconds = max(time.monotonic() - self._begin, 1e-9)
        rate = self.done / seconds
        if not self.done:
            return f"{self.what}: {seconds:.0f} s"
        text = f"{self.what}: {self._amount(self.done)}"
        if self.total:
            text += f" of {self._amount(self.total)} ({min(1.0, self.done / self.total):.0%})"
        text += f", {self._amount(int(rate))}/s"
        if self.total and self.done < self.total:
            text += f", about {_duration((self.total - self.done) / rate)} left"
        return text

    def _amount(self, count: int) -> str:
        return f"{count / 1e6:,.1f} MB" if self.unit == "bytes" else f"{count:,} {self.unit}"

    def _show(self) -> None:
        if self._over.wait(QUICK):
            return
        if sys.stderr.isatty():
            self._bar()
            return
        while True:
            print(self.line(), file=sys.stderr, flush=True)
            if self._over.wait(PAUSE):
                return

    def _bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
        with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
            task = bar.add_task(self.what, total=self.total)
            while True:
                bar.update(task, completed=self.done, description=self.line(), refresh=True)
                if self._over.wait(0.2):
                    return


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def track(total: int | None, what: str, unit: str = "rows") -> Progress:
    """A context manager with `advance(n)`: `with track(len(rows), "reading") as progress: …`."""
    return Progress(total, what, unit)
