"""Checks of arguments, shared by all public calls: each returns the value, or says what belongs there and what was given."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

from regard.errors import OptionError

MAX_QUOTED = 80  # characters of a value that is quoted
MAX_SIZE = 1 << 31  # no size, count or length is beyond: torch would fail, or a loop would not end


def quoted(value: Any) -> str:
    """A value on one short line."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return f"a number of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 2] + " …"


def integer(name: str, value: Any, least: int = 1, most: int = MAX_SIZE, *, even: bool = False) -> int:
    """A whole number between `least` and `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (even and value % 2):
        raise OptionError(
            f"{name} must be {'an even' if even else 'a'} whole number of at least {least}, got {quoted(value)}"
        )
    if value > most:
        raise OptionError(f"{name} must be a whole number of at most {most}, got {quoted(value)}")
    return value


def number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """A finite number between `least` and `most`."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) < math.inf
        or not least <= value <= most
    ):
        limits = f" of at least {least:g}" * (least > -math.inf) + f" and at most {most:g}" * (
            most < math.inf
        )
        raise OptionError(f"{name} must be a finite number{limits}, got {quoted(value)}")
    return value


def fraction(name: str, value: Any) -> float:
    """A number in [0, 1): a dropout, a rate."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise OptionError(f"{name} must be a number of at least 0 and below 1, got {quoted(value)}")
    return value


def flag(name: str, value: Any) -> bool:
    """True or False; 0, 1, None and other plain values count by their truth, tensors do not."""
    if hasattr(value, "shape"):
        raise OptionError(f"{name} must be True or False, got {quoted(value)}")
    return bool(value)


def one_of(name: str, value: Any, choices: Collection[Any]) -> Any:
    """One of a few names."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{name} must be one of {', '.join(map(str, choices))}, got {quoted(value)}")
    return value


def instance(name: str, value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """An object of a class; `what` describes it."""
    if not isinstance(value, kind):
        raise OptionError(f"{name} must be {what}, got {quoted(value)}")
    return value


def string_list(name: str, value: Any, what: str = "texts") -> list[str]:
    """A list of strings."""
    if isinstance(value, str):
        raise OptionError(f"{name} is a list of {what}, got one string; write [{what.removesuffix('s')}]")
    if not isinstance(value, Iterable) or hasattr(value, "shape"):
        raise OptionError(f"{name} is a list of {what}, got {quoted(value)}")
    found = list(value)
    for text in found:
        if not isinstance(text, str):
            raise OptionError(f"{name} is a list of {what}, got {quoted(text)} among them")
    return found


def as_list(name: str, value: Any, what: str) -> list[Any]:
    """Any iterable but a string, as a list."""
    if isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
        raise OptionError(f"{name} is {what}, got {quoted(value)}")
    return list(value)


def function_list(name: str, value: Any, count: int, what: str) -> list[Any] | None:
    """A list of functions, one for each of `count` things, or None."""
    if value is None:
        return None
    found = as_list(name, value, f"a list of functions, one for each of the {what}")
    for each in found:
        if not callable(each):
            raise OptionError(f"{name} is a list of functions, got {quoted(each)} among them")
    if len(found) != count:
        raise OptionError(f"{name} has {len(found)} entries for {count} {what}; give one for each")
    return found
