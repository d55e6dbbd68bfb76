"""SIGINT, SIGTERM and SIGHUP: the first stops training after the current step, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

SIGNALS = [
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
]


class StopNow(KeyboardInterrupt):
    """A second signal: stop without saving. `signal` is its number, for the exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class StopSignals:
    """Context with signal handlers; `signal` is the number of the first signal received, None before."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.signal: int | None = None
        self._report = report
        self._previous: dict[int, Any] = {}

    @property
    def stop_requested(self) -> bool:
        """True after a signal."""
        return self.signal is not None

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # only it receives signals in Python
            for number in SIGNALS:
                ignored = signal.getsignal(number) == signal.SIG_IGN
                if ignored and number not in (signal.SIGINT, signal.SIGTERM):
                    continue  # started by nohup: a closed terminal must not stop it
                self._previous[number] = signal.signal(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        # torchrun forwards a signal that the terminal has sent to every process already; ignore the second.
        if self.stop_requested and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise StopNow(number)
        if not self.stop_requested:
            self.signal = number
            self._report("stopping after this step; a second signal stops at once")
