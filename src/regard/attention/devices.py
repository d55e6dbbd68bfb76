"""Devices of attention options: `Mask.to`, `Bias.to` and `Energy.to`, and the check that an option is where the query is."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from regard.arguments import quoted
from regard.errors import DeviceError, OptionError


class Movable:
    """An option whose tensors can be moved."""

    def to(self, device: torch.device | str | int) -> Self:
        """This option with its tensors on `device`, dtypes kept: a copy, or the option itself if nothing moves.

        Tensors are found in attributes, also in options, lists, tuples and dicts there. Modules move in place, as in torch.
        """
        try:
            target = torch.device(device)
        except (RuntimeError, TypeError):
            name = f"{type(self).__name__}.to"
            raise OptionError(
                f"{name} takes a device such as 'cpu' or 'cuda', got {device!r}; tensors keep their types"
            ) from None
        try:
            return (
                nn.Module.to(self, target)
                if isinstance(self, nn.Module)
                else _with_moved_attributes(self, target)
            )  # type: ignore[return-value]
        except (RuntimeError, AssertionError) as error:  # torch without CUDA raises an AssertionError
            why = (str(error) or type(error).__name__).splitlines()[0]
            raise DeviceError(f"{type(self).__name__} cannot be moved to {device!r}: {why}") from error


def _with_moved_attributes(option: Any, device: torch.device) -> Any:
    moved = {name: _moved(held, device) for name, held in vars(option).items()}
    if all(moved[name] is held for name, held in vars(option).items()):
        return option
    found = copy.copy(option)
    for name, held in moved.items():
        object.__setattr__(found, name, held)  # masks are frozen dataclasses
    return found


def _moved(x: Any, device: torch.device) -> Any:
    if isinstance(x, Tensor | nn.Module):
        return x.to(device)
    if isinstance(x, list | tuple):
        items = [_moved(held, device) for held in x]
        if all(a is b for a, b in zip(items, x, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    if isinstance(x, dict):
        items = {name: _moved(held, device) for name, held in x.items()}
        return x if all(items[name] is held for name, held in x.items()) else items
    return x.to(device) if isinstance(x, Movable) else x


def check_device(name: str, option: str, x: Tensor, device: torch.device) -> None:
    """Raise when a tensor of an option is not where the query is. `option`: what the user moves, "mask", "bias" or "energy"."""
    if x.device != device:
        raise DeviceError(
            f"{name} is on {x.device} and the query on {device}; move it with {option}.to({str(device)!r})"
        )


def as_device(value: object) -> torch.device:
    """A torch device, or a sentence."""
    try:
        if isinstance(value, str | torch.device):
            return torch.device(value)
    except RuntimeError:
        pass
    raise OptionError(f"device must be 'cpu', 'cuda', 'cuda:N' or a torch.device, got {quoted(value)}")
