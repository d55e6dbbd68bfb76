"""Kernel hints of masks, biases, energies and normalisers, and why subclasses do not inherit them.

A class declares hints for kernels: its mask allows one range of keys per query, its energy is a dot product,
its bias reads these tensors. Kernels trust them. A subclass that overrides the rule, itself or by a mixin,
would make inherited hints wrong, so they are reset: such a subclass declares its own, or kernels treat it as
unknown. Kernels also bypass the call of an energy that is a module, so its hooks count: `has_plain_call`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import _has_any_global_hook


def reset_inherited_hints(
    cls: type, rule: tuple[str, ...], hints: Mapping[str, Any], always: Mapping[str, Any]
) -> None:
    """Reset inherited hints of `cls` to defaults; hints that it defines itself stay.

    `hints` are reset if a method named in `rule` comes from a class before that of the hint in the method
    resolution order, `always` in any case.
    """
    ruled_by = min(_definer(cls, name) for name in rule)
    for name, default in hints.items():
        if ruled_by < _definer(cls, name):
            setattr(cls, name, default)
    for name, default in always.items():
        if name not in cls.__dict__:
            setattr(cls, name, default)


def _definer(cls: type, name: str) -> int:
    """The place in the method resolution order of the class that defines `name`."""
    order = [base for base in cls.__mro__ if base is not nn.Module]  # its __call__ is no rule
    return next((i for i, base in enumerate(order) if name in base.__dict__), len(order))


def has_plain_call(module: nn.Module) -> bool:
    """True if calling a module only runs the `forward` of its class: not patched, compiled or hooked."""
    if "forward" in vars(module) or module._compiled_call_impl is not None or _has_any_global_hook():
        return False
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
