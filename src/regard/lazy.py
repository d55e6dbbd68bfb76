"""Lazy exports: a package lists its public names and imports the module of a name when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def exported(package: str, homes: Mapping[str, str], modules: Iterable[str] = ()) -> Callable[[str], object]:
    """Return the `__getattr__` of a package (PEP 562).

    Args:
        package: The package's `__name__`.
        homes: The module, relative to the package, in which each name is defined.
        modules: Submodules that are attributes of the package without being imported first.
    """

    def get(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next access does not come here
        return value

    return get
