"""Named parts that others can extend: optimizers, schedules, tasks, tokenizers, export formats and so on."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from regard.arguments import quoted
from regard.errors import OptionError

T = TypeVar("T")
Part = TypeVar("Part")  # the decorated class keeps its own type


class Registry(Mapping[str, T]):
    """A read-only mapping from names to parts; `add` and `remove` change it.

    >>> schedules = Registry[type]("schedule")
    >>> @schedules.add("constant")
    ... class Constant: ...
    >>> schedules["constant"].__name__
    'Constant'
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}

    def add(self, name: str) -> Callable[[Part], Part]:
        """Return a decorator that registers a function, a class or an object under `name`."""
        if not isinstance(name, str) or not name:
            raise OptionError(f"the name of a {self.kind} must be a non-empty string, got {quoted(name)}")

        def register(part: Part) -> Part:
            if name in self._parts:
                raise OptionError(
                    f"there is a {self.kind} {name!r} already; choose another name or remove it"
                )
            self._parts[name] = part  # type: ignore[assignment]
            return part

        return register

    def remove(self, name: str) -> None:
        """Unregister `name`."""
        self[name]  # an unknown name gets the usual message
        del self._parts[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._parts:
            near = difflib.get_close_matches(str(name), self._parts, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise _Unknown(f"{self.kind} must be one of {', '.join(self._parts)}, got {quoted(name)}{hint}")
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class _Unknown(OptionError, KeyError):
    """An OptionError that `in` and `get` of a mapping understand."""

    __str__ = ValueError.__str__
