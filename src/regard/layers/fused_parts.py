"""Which parts run as our fused GPU kernels: residual sums and loss of training; decoder steps, and in these
the update of the beam.

A part runs fused if it is enabled and its kernel supports the inputs; otherwise the plain torch path runs,
which defines the result. A part is on by default once its tests pass on a GPU and a benchmark shows a gain.
Choose parts by name, for a benchmark or a trial run:

    with use_parts("residual", "loss"): ...
    `REGARD_FUSED=residual,loss regard train transformer-base`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from regard.errors import OptionError

PARTS = ("residual", "loss", "decoding", "beam")  # "beam" needs "decoding"
OFF_BY_DEFAULT: tuple[str, ...] = ()  # parts without a passed GPU test or without a measured gain
VARIABLE = "REGARD_FUSED"

_open_contexts: list[frozenset[str]] = []  # the parts of each open `use_parts`, innermost last


def is_enabled(part: str) -> bool:
    """True if this part runs fused where its kernel supports the inputs."""
    if _open_contexts:
        return part in _open_contexts[-1]
    names = os.environ.get(VARIABLE)
    return part not in OFF_BY_DEFAULT if names is None else part in _parse(names)


@contextmanager
def use_parts(*parts: str) -> Iterator[None]:
    """Enable exactly these parts inside the context."""
    _open_contexts.append(_check(parts, "use_parts"))
    try:
        yield
    finally:
        _open_contexts.pop()


def _parse(names: str) -> frozenset[str]:
    if names.strip() in ("", "none"):
        return frozenset()
    return _check([name.strip() for name in names.split(",")], VARIABLE)


def _check(names: tuple[str, ...] | list[str], where: str) -> frozenset[str]:
    for name in names:
        if name not in PARTS:
            raise OptionError(f"{where} has no part {name!r}; there are {', '.join(PARTS)}, or none")
    return frozenset(names)
