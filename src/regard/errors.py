"""What regard raises when an input cannot be right: one sentence that names the thing, the value and the fix."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_TENSOR = re.compile(
    r"(?:tensor|array|Parameter containing:\s*tensor)\(\[.*?\](?:,\s*[a-z_]+=[^()]*(?:\([^()]*\))?)*\)",
    re.DOTALL,
)


def for_shell(path: str | Path) -> str:
    """A path as a shell takes it, for the commands that messages suggest."""
    return shlex.quote(str(path))


class RegardError(ValueError):
    """The parent of every error regard raises about its inputs. A tensor that is for_shell is cut to one short line."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_TENSOR.sub(_short, str(message)))


def _short(found: re.Match[str]) -> str:
    text = " ".join(found[0].split())
    return text if len(text) <= 80 else text[:76] + " …)"


class ShapeError(RegardError):
    """Tensors, masks or biases whose sizes do not fit together."""


class DtypeError(RegardError):
    """A tensor of a type that attention cannot compute with."""


class DeviceError(RegardError):
    """Tensors that lie on different devices."""


class OptionError(RegardError):
    """An option outside its range, or of the wrong kind."""


class KernelError(RegardError):
    """A kernel that was asked for by name and cannot do the call."""


class DataError(RegardError):
    """A corpus, file or vocabulary that cannot be used as it is."""


class RecipeError(RegardError):
    """A recipe with an unknown key, a wrong value, or parts that do not fit together."""


class FolderError(RegardError):
    """A model or run folder that is missing, damaged or of another version."""
