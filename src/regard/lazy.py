"""Names that a package offers and imports only when one is asked for, so that importing the package stays cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def exported(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A package's `__getattr__`: each name comes from its module, `homes[name]`."""

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
