"""What a person sees while training: one live line on a terminal, plain lines now and then elsewhere, nothing when quiet."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

REFRESH = 1.0  # seconds between changes of the live line; each waits for the device once
EVERY = 10.0  # seconds between plain lines


class Display:
    """Lines about training, on stderr."""

    def __init__(self, quiet: bool = False, unit: str = "tokens") -> None:
        self.quiet, self.unit = quiet, unit  # what is learned from: tokens, rows, tags
        self.score = ""
        self._live: Any = None
        self._due = 0.0

    def __enter__(self) -> Display:
        if not self.quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        self._due = time.monotonic() + (REFRESH if self._live else EVERY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with self._terminal():
                self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.quiet:
            return
        with self._terminal():
            if self._live is not None:
                self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """A terminal that was closed must not stop training: from then on nothing is printed."""
        try:
            yield
        except OSError:
            self.quiet = True
            sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (Python flushes it when it exits)

    @property
    def due(self) -> bool:
        """Whether it is time for a new line; asking costs nothing."""
        return not self.quiet and time.monotonic() >= self._due

    def line(self, values: dict[str, Any]) -> None:
        """Where training stands: step, steps, epochs, loss, tokens_per_second, rate, left."""
        text = describe(values, self.unit) + (f" · {self.score}" if self.score else "")
        if self._live is not None:
            from rich.text import Text

            with self._terminal():
                self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            self._due = time.monotonic() + REFRESH
        else:
            self.say(text)
            self._due = time.monotonic() + EVERY


def describe(values: dict[str, Any], unit: str = "tokens") -> str:
    """`step 1,200/10,000 · epoch 3.1 · loss 3.214 · 15,300 tokens/s · lr 7.0e-04 · 0:12:10 left`."""
    of = f"/{values['steps']:,}" if values.get("steps") else ""
    parts = [f"step {values['step']:,}{of}", f"epoch {values['epochs']:.1f}"]
    if values.get("loss") is not None:
        parts.append(f"loss {values['loss']:.3f}")
    parts += [f"{values['tokens_per_second']:,.0f} {unit}/s", f"lr {values['rate']:.1e}"]
    if values.get("left") is not None:
        parts.append(f"{clock(values['left'])} left")
    return " · ".join(parts)


def clock(seconds: float) -> str:
    """0:12:10."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
