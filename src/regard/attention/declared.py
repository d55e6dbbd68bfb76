"""Facts that a class declares about its rule, and what happens to them in a subclass.

Kernels trust declarations: that a mask allows one range of keys per query, that an energy is a dot product, which tensors a
bias reads. A subclass that changes the rule makes them false without touching them, so a declaration is not inherited: a
class that defines the rule again, or holds state of its own, must declare again or is treated as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def forget_declared(
    cls: type, rule: tuple[str, ...], facts: Mapping[str, Any], always: Mapping[str, Any]
) -> None:
    """Reset what `cls` inherits: `facts` if it redefines one of `rule`, `always` in any case; its own definitions stay."""
    lost = dict(always)
    if any(name in cls.__dict__ for name in rule):
        lost |= facts
    for name, default in lost.items():
        if name not in cls.__dict__:
            setattr(cls, name, default)
