"""Exceptions for invalid input. A message is one sentence that names the thing, the value and the fix."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

__all__ = [
    "DataError",
    "DeviceError",
    "DtypeError",
    "FolderError",
    "KernelError",
    "OptionError",
    "RecipeError",
    "RegardError",
    "ShapeError",
]

_TENSOR = re.compile(
    r"(?:tensor|array|Parameter containing:\s*tensor)\(\[.*?\](?:,\s*[a-z_]+=[^()]*(?:\([^()]*\))?)*\)",
    re.DOTALL,
)


def for_shell(path: str | Path) -> str:
    """A path as a shell takes it, for the commands that messages suggest."""
    return shlex.quote(str(path))


class RegardError(ValueError):
    """Base class of all errors about inputs. Tensors in the message are shortened to one line.

    >>> try:
    ...     regard.attend(torch.ones(3, 4), torch.ones(5, 6), torch.ones(5, 6))
    ... except regard.RegardError as error:
    ...     print(type(error).__name__)
    ShapeError
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_TENSOR.sub(_shorten, str(message)))


def _shorten(tensor: re.Match[str]) -> str:
    text = " ".join(tensor[0].split())
    return text if len(text) <= 80 else text[:76] + " …)"


class ShapeError(RegardError):
    """Shapes of tensors, masks or biases that do not match."""


class DtypeError(RegardError):
    """A tensor of an unsupported or mismatched dtype."""


class DeviceError(RegardError):
    """Tensors on different devices."""


class OptionError(RegardError):
    """An option of the wrong type or out of range."""


class KernelError(RegardError):
    """A kernel that was requested by name and cannot run the call."""


class DataError(RegardError):
    """A corpus, file or vocabulary that cannot be used."""


class RecipeError(RegardError):
    """A recipe with an unknown key, an invalid value or conflicting settings."""


class FolderError(RegardError):
    """A model or run folder that is missing, corrupted or of another version."""
