"""A pause of Python's garbage collector while many objects are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause automatic garbage collection in the block, or in the decorated function.

    Creating tens of thousands of lists and objects triggers a collection that visits every object of the
    process, 100 ms with torch. For short code that creates no reference cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
