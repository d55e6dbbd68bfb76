"""Register the tensors in attention options with a layer: trained, saved and moved with it."""

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


class RegisteredOption(nn.Module):
    """Module that wraps an option with tensors or modules in it, such as a dense bias or a mask of lengths.

    Parameters and modules are trained and saved; other tensors become non-persistent buffers. `option`
    rebuilds the option from the registered tensors, so it is correct after `.to()`, `deepcopy` and in
    `functional_call`.
    """

    def __init__(self, option: Any) -> None:
        super().__init__()
        self._template = copy.copy(option)  # the option without its registered attributes
        self._names = []
        for name, value in vars(option).items():
            value = register_option(value) if isinstance(value, OPTIONS) else value
            if isinstance(value, nn.Parameter | nn.Module):
                setattr(self, name, value)
            elif isinstance(value, Tensor):
                self.register_buffer(name, value, persistent=False)
            else:
                continue
            self._names.append(name)
            object.__setattr__(self._template, name, None)  # masks are frozen dataclasses

    @property
    def option(self) -> Any:
        option = copy.copy(self._template)
        for name in self._names:
            value = getattr(self, name)
            object.__setattr__(option, name, value.option if isinstance(value, RegisteredOption) else value)
        return option

    def __repr__(self) -> str:
        return repr(self.option)


def register_option(option: Any) -> Any:
    """Wrap the option if it holds tensors or modules; return anything else unchanged."""
    if isinstance(option, nn.Module) or not isinstance(option, OPTIONS):
        return option
    registered = RegisteredOption(option)
    return registered if registered._names else option


class HasOptions(nn.Module):
    """Layer with attention options as attributes: read and set as plain objects, registered in `options`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in NAMES:
            super().__setattr__(name, value)
            return
        registered: Any = self._modules.get("options", {})
        for attributes in (self.__dict__, self._modules, self._parameters, self._buffers, registered):
            if name in attributes:
                del attributes[name]
        value = register_option(value)
        if isinstance(value, RegisteredOption):
            if "options" not in self._modules:
                self.options = nn.ModuleDict()
            self.options[name] = value
        elif isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_buffer(name, value, persistent=False)
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        registered = self.__dict__["_modules"].get("options") if name in NAMES else None
        if registered is not None and name in registered:
            return registered[name].option
        return super().__getattr__(name)
