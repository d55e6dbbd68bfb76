"""Run compiled code eagerly inside `watch` and `intervene` (`torch.compiler.set_stance("force_eager")`)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback

from regard.errors import OptionError


class _EagerStance:
    """Reentrant context manager, shared by all threads: torch has one stance per process."""

    def __init__(self) -> None:
        self.lock, self.depth, self.stance = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self.lock:
            self._set()
            self.depth += 1

    def _set(self) -> None:
        # Without torch._dynamo nothing is compiled yet, and importing it takes seconds.
        if self.stance is not None or "torch._dynamo" not in sys.modules:
            return
        if get_eval_frame_callback() not in (None, False):
            raise OptionError(
                "watch and intervene cannot begin inside a compiled function; "
                "put them around the call of that function"
            )
        self.stance = torch.compiler.set_stance("force_eager")

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if not self.depth and self.stance is not None:
                self.stance.__exit__(None, None, None)
                self.stance = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Restore the previous stance for a compiled kernel: Flex uncompiled would build the T × T matrix."""
        stance = self.stance
        if stance is not None:
            previous = stance.prev
            with torch.compiler.set_stance(
                previous.stance,
                skip_guard_eval_unsafe=previous.skip_guard_eval_unsafe,
                force_backend=previous.backend,
            ):
                yield
            return
        yield
        if get_eval_frame_callback() in (None, False):
            with self.lock:
                self._set()  # this kernel may have been the first to import torch._dynamo


eager_stance = _EagerStance()


def compiled_frames() -> int:
    """The number of frames that torch.compile has compiled so far; 0 while our stance is set."""
    if eager_stance.stance is not None or "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return counters["frames"]["total"]
