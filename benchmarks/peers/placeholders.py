"""Import a library without packages that it imports and does not call.

sentence-transformers imports scipy and scikit-learn for its evaluators. `encode` calls neither, and their
wheels (42 MiB) are too large to carry to a machine without network. Its own code is unchanged.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Placeholders(MetaPathFinder, Loader):
    """Finds any module of the given packages; a name imported from it raises an error when it is called."""

    def __init__(self, packages: list[str]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        return ModuleSpec(fullname, self, is_package=True) if package in self.packages else None

    def exec_module(self, module: ModuleType) -> None:
        def missing(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)

            def call(*_: object, **__: object) -> None:
                raise ImportError(f"{module.__name__}.{name} was called, and this is a placeholder")

            return call

        module.__getattr__ = missing  # type: ignore[method-assign]


def add_placeholders(packages: Sequence[str]) -> list[str]:
    """Make packages that are not installed importable; return which."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        sys.meta_path.append(_Placeholders(missing))
    return missing
