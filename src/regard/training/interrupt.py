"""SIGINT and SIGTERM: the first asks training to stop after the step, the second stops it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While inside, `wanted` says whether somebody asked to stop."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.wanted = False
        self._say = say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # Python gives signals to no other
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        # torchrun passes on a signal that the terminal has sent to every process already, so there the second says nothing new.
        if self.wanted and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise KeyboardInterrupt
        if not self.wanted:
            self.wanted = True
            self._say("stopping after this step; once more stops at once")
