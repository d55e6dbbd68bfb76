"""Kernel hints of masks, biases, energies and normalisers, and why subclasses do not inherit them.

A class declares hints for kernels: its mask allows one range of keys per query, its energy is a dot product,
its bias reads these tensors. Kernels trust them. A subclass that overrides the rule would make inherited
hints wrong, so they are reset: such a subclass declares its own, or kernels treat it as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def reset_inherited_hints(
    cls: type, rule: tuple[str, ...], hints: Mapping[str, Any], always: Mapping[str, Any]
) -> None:
    """Reset inherited hints of `cls` to defaults; hints that it defines itself stay.

    `hints` are reset if the class overrides a method named in `rule`, `always` in any case.
    """
    defaults = dict(always)
    if any(name in cls.__dict__ for name in rule):
        defaults |= hints
    for name, default in defaults.items():
        if name not in cls.__dict__:
            setattr(cls, name, default)
