"""Devices: `Mask.to`, `Bias.to`, `Energy.to`, a check against the query's device, and `--device auto`."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from regard.arguments import quoted
from regard.errors import DeviceError, OptionError


class Movable:
    """Base class of options whose tensors can be moved to another device."""

    def to(self, device: torch.device | str | int) -> Self:
        """A copy with all tensors on `device`, dtypes unchanged; the option itself if nothing moves.

        Moves tensors in attributes, also inside nested options, lists, tuples and dicts. Modules move in
        place, as in torch.
        """
        try:
            target = torch.device(device)
        except (RuntimeError, TypeError):
            name = f"{type(self).__name__}.to"
            raise OptionError(
                f"{name} takes a device such as 'cpu' or 'cuda', got {device!r}; dtypes cannot be changed"
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
    moved = {name: _moved(attribute, device) for name, attribute in vars(option).items()}
    if all(moved[name] is attribute for name, attribute in vars(option).items()):
        return option
    copied = copy.copy(option)
    for name, attribute in moved.items():
        object.__setattr__(copied, name, attribute)  # masks are frozen dataclasses
    return copied


def _moved(x: Any, device: torch.device) -> Any:
    if isinstance(x, Tensor | nn.Module):
        return x.to(device)
    if isinstance(x, list | tuple):
        items = [_moved(item, device) for item in x]
        if all(a is b for a, b in zip(items, x, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    if isinstance(x, dict):
        items = {name: _moved(item, device) for name, item in x.items()}
        return x if all(items[name] is item for name, item in x.items()) else items
    return x.to(device) if isinstance(x, Movable) else x


def check_device(name: str, option: str, x: Tensor, device: torch.device) -> None:
    """Raise if a tensor of an option is not on the query's device. `option` is "mask", "bias" or "energy"."""
    if x.device != device:
        raise DeviceError(
            f"{name} is on {x.device} and the query on {device}; move it with {option}.to({str(device)!r})"
        )


def as_device(value: object) -> torch.device:
    """The value as a torch.device."""
    try:
        if isinstance(value, str | torch.device):
            return torch.device(value)
    except RuntimeError:
        pass
    raise OptionError(f"device must be 'cpu', 'cuda', 'cuda:N' or a torch.device, got {quoted(value)}")


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device for auto, cpu or cuda; a missing GPU is an error."""
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device must be auto, cpu or cuda, got {name!r}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise DeviceError(
            "the device is cuda, and torch sees no GPU here; choose cpu or install torch for CUDA"
        )
    if local_rank >= gpus:
        raise DeviceError(
            f"process {local_rank} of this machine has no GPU, there are {gpus}; "
            f"start torchrun with --nproc-per-node {gpus}"
        )
    return torch.device("cuda", local_rank)
