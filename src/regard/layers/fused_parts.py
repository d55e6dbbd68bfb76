"""Which fused GPU parts run: the residual sums, loss and gradient clipping of training; steps of decoding.

A part runs on a GPU if it is enabled and can do what is asked; otherwise the plain torch path runs, which
defines the result. UNMEASURED parts pass their tests in Triton's interpreter but have not been timed on a
GPU, so they are off. Turn parts on by name, for a benchmark or a trial run:

    with use_parts("residual", "loss"): ...
    `REGARD_FUSED=residual,loss regard train transformer-base`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from regard.errors import OptionError

PARTS = ("residual", "loss", "clip", "decoding")
# Remove a part once benchmarks.train_gpu or benchmarks.decode_gpu shows a gain.
UNMEASURED = ("residual", "loss", "clip", "decoding")
VARIABLE = "REGARD_FUSED"

_forced: list[frozenset[str]] = []  # of the use_parts contexts that are open


def is_enabled(part: str) -> bool:
    """True if this part shall run where it can."""
    if _forced:
        return part in _forced[-1]
    names = os.environ.get(VARIABLE)
    return part not in UNMEASURED if names is None else part in _parse(names)


@contextmanager
def use_parts(*parts: str) -> Iterator[None]:
    """Run exactly these parts inside the context, where they can run."""
    _forced.append(_check(parts, "use_parts"))
    try:
        yield
    finally:
        _forced.pop()


def _parse(names: str) -> frozenset[str]:
    if names.strip() in ("", "none"):
        return frozenset()
    return _check([name.strip() for name in names.split(",")], VARIABLE)


def _check(names: tuple[str, ...] | list[str], where: str) -> frozenset[str]:
    for name in names:
        if name not in PARTS:
            raise OptionError(f"{where} has no part {name!r}; there are {', '.join(PARTS)}, or none")
    return frozenset(names)
