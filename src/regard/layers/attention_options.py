"""Attention options as parts of a layer: what they hold is trained, saved and moved with it."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from regard.attention.bias import Bias
from regard.attention.energy import Energy
from regard.attention.mask import Mask
from regard.attention.normalize import Normalizer

NAMES = ("energy", "mask", "bias", "normalize", "gate")
OPTIONS = Energy | Mask | Bias | Normalizer


class Registered(nn.Module):
    """An option that is no module itself but holds tensors or modules: a dense bias, a mask of lengths, a function with weights.

    Parameters and modules are trained and saved; other tensors move with the layer and are not saved. `option` is the option
    with what is registered now, so it stays right after `.to()`, `deepcopy` and under `torch.func.functional_call`.
    """

    def __init__(self, option: Any) -> None:
        super().__init__()
        self._empty = copy.copy(option)
        self._names = []
        for name, held in vars(option).items():
            held = register(held) if isinstance(held, OPTIONS) else held
            if isinstance(held, nn.Parameter | nn.Module):
                setattr(self, name, held)
            elif isinstance(held, Tensor):
                self.register_buffer(name, held, persistent=False)
            else:
                continue
            self._names.append(name)
            object.__setattr__(self._empty, name, None)  # masks are frozen dataclasses

    @property
    def option(self) -> Any:
        found = copy.copy(self._empty)
        for name in self._names:
            held = getattr(self, name)
            object.__setattr__(found, name, held.option if isinstance(held, Registered) else held)
        return found

    def __repr__(self) -> str:
        return repr(self.option)


def register(option: Any) -> Any:
    """The option as `Registered` if it holds tensors or modules; all else stays as it is."""
    if isinstance(option, nn.Module) or not isinstance(option, OPTIONS):
        return option
    found = Registered(option)
    return found if found._names else option


class HasOptions(nn.Module):
    """A layer with attention options as attributes. They are read and set as plain objects; `options` holds the registered ones."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in NAMES:
            super().__setattr__(name, value)
            return
        held: Any = self._modules.get("options", {})
        for place in (self.__dict__, self._modules, self._parameters, self._buffers, held):
            if name in place:
                del place[name]
        value = register(value)
        if isinstance(value, Registered):
            if "options" not in self._modules:
                self.options = nn.ModuleDict()
            self.options[name] = value
        elif isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_buffer(name, value, persistent=False)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__["_modules"].get("options") if name in NAMES else None
        return held[name].option if held is not None and name in held else super().__getattr__(name)
