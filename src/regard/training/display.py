"""Progress of training on stderr: a live line on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

LIVE_INTERVAL = 1.0  # seconds between updates of the live line; each waits for the device once
LINE_INTERVAL = 10.0  # seconds between lines if there is no terminal


class Display:
    """Prints messages and the progress of training to stderr; nothing if `quiet`."""

    def __init__(self, quiet: bool = False, unit: str = "tokens") -> None:
        self.quiet, self.unit = quiet, unit  # unit of the speed: tokens, rows, tags
        self.score = ""
        self._live: Any = None
        self._due = 0.0

    def __enter__(self) -> Display:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        self._due = time.monotonic() + (LIVE_INTERVAL if self._live else LINE_INTERVAL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with self._terminal():
                self._live.stop()
            self._live = None

    def print(self, text: str) -> None:
        """Print a line."""
        if self.quiet:
            return
        with self._terminal():
            if self._live is not None:
                self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """Stop printing if the terminal was closed; training continues."""
        try:
            yield
        except OSError:
            self.quiet = True
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (Python flushes it when it exits)

    @property
    def is_due(self) -> bool:
        """True if it is time for an update."""
        return not self.quiet and time.monotonic() >= self._due

    def update(self, values: dict[str, Any]) -> None:
        """Show step, steps, epochs, loss, tokens_per_second, rate and the seconds left."""
        text = progress_line(values, self.unit) + (f" · {self.score}" if self.score else "")
        if self._live is not None:
            from rich.text import Text

            with self._terminal():
                self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            self._due = time.monotonic() + LIVE_INTERVAL
        else:
            self.print(text)
            self._due = time.monotonic() + LINE_INTERVAL


def progress_line(values: dict[str, Any], unit: str = "tokens") -> str:
    """Return `step 1,200/10,000 · epoch 3.1 · loss 3.214 · 15,300 tokens/s · lr 7.0e-04 · 0:12:10 left`."""
    of = f"/{values['steps']:,}" if values.get("steps") else ""
    parts = [f"step {values['step']:,}{of}", f"epoch {values['epochs']:.1f}"]
    if values.get("loss") is not None:
        parts.append(f"loss {values['loss']:.3f}")
    parts += [f"{values['tokens_per_second']:,.0f} {unit}/s", f"lr {values['rate']:.1e}"]
    if values.get("left") is not None:
        parts.append(f"{format_clock(values['left'])} left")
    return " · ".join(parts)


def format_clock(seconds: float) -> str:
    """Return seconds as 0:12:10."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
