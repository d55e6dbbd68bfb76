"""Progress on standard error: a bar on a terminal, else a line every ten seconds; nothing for short work."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

DELAY = 2.0  # seconds before anything is shown
INTERVAL = 10.0  # seconds between lines if standard error is not a terminal


class Progress:
    """Counts finished work (`advance`) and displays it from a background thread.

    The thread also displays the elapsed time of work that has not advanced yet.

    Args:
        total: amount of work, None if unknown.
        what: description of the work.
        unit: plural noun; bytes are displayed as MB.
    """

    def __init__(self, total: int | None, what: str, unit: str) -> None:
        self.total, self.what, self.unit, self.done = total, what, unit, 0
        self._start = time.monotonic()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._display, name="regard-progress", daemon=True)

    def advance(self, count: int = 1) -> None:
        self.done += count

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished.set()
        self._thread.join()

    def line(self) -> str:
        """Return the status line: amount, rate and remaining time."""
        seconds = max(time.monotonic() - self._start, 1e-9)
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

    def _display(self) -> None:
        if self._finished.wait(DELAY):
            return
        if sys.stderr.isatty():
            self._bar()
            return
        while True:
            print(self.line(), file=sys.stderr, flush=True)
            if self._finished.wait(INTERVAL):
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
                if self._finished.wait(0.2):
                    return


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def track(total: int | None, what: str, unit: str = "rows") -> Progress:
    """Return a `Progress`, to be used as a context manager.

    >>> with track(3, "reading") as progress:
    ...     for row in range(3):
    ...         progress.advance()
    """
    return Progress(total, what, unit)
