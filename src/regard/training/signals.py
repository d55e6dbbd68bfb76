"""SIGINT, SIGTERM and SIGHUP: the first asks training to stop after the step, the second stops it at once."""

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
    """Signal handlers while inside. `signal` is the number of the first signal received, None before."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.signal: int | None = None
        self._say = say
        self._before: dict[int, Any] = {}

    @property
    def wanted(self) -> bool:
        """True once a signal has asked to stop."""
        return self.signal is not None

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # Python gives signals to no other
            for number in SIGNALS:
                if (
                    number not in (signal.SIGINT, signal.SIGTERM)
                    and signal.getsignal(number) == signal.SIG_IGN
                ):
                    continue  # started by nohup: a closed terminal must not stop it
                self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        # torchrun passes on a signal that the terminal has sent to every process already, so there the second says nothing new.
        if self.wanted and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise StopNow(number)
        if not self.wanted:
            self.signal = number
            self._say("stopping after this step; once more stops at once")
