"""Argument checks of public functions. Each returns the value or raises an OptionError that names it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from numbers import Integral
from typing import Any

from regard.errors import OptionError

MAX_QUOTED = 80  # characters of a value in an error message
MAX_SIZE = 1 << 31  # limit of sizes, counts and lengths: beyond, torch fails or a loop does not end


def quoted(value: Any) -> str:
    """The value as text for an error message: one line, at most MAX_QUOTED characters."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return f"a number of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 2] + " …"


def integer(name: str, value: Any, least: int = 1, most: int = MAX_SIZE, *, even: bool = False) -> int:
    """Check for an integer between `least` and `most`; one of NumPy becomes Python's."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (even and value % 2):
        raise OptionError(
            f"{name} must be {'an even' if even else 'an'} integer of at least {least}, got {quoted(value)}"
        )
    if value > most:
        raise OptionError(f"{name} must be an integer of at most {most}, got {quoted(value)}")
    return value


def number(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """Check for a finite number between `least` and `most`."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) < math.inf
        or not least <= value <= most
    ):
        lower, upper = f" of at least {least:g}", f" and at most {most:g}"
        limits = lower * (least > -math.inf) + upper * (most < math.inf)
        raise OptionError(f"{name} must be a finite number{limits}, got {quoted(value)}")
    return value


def fraction(name: str, value: Any) -> float:
    """Check for a number in [0, 1), such as a dropout rate."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise OptionError(f"{name} must be a number of at least 0 and below 1, got {quoted(value)}")
    return value


def flag(name: str, value: Any) -> bool:
    """The truth value of True, False, 0, 1, None and the like; tensors and arrays are refused."""
    if hasattr(value, "shape"):
        raise OptionError(f"{name} must be True or False, got {quoted(value)}")
    return bool(value)


def one_of(name: str, value: Any, choices: Collection[Any]) -> Any:
    """Check for one of several names."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{name} must be one of {', '.join(map(str, choices))}, got {quoted(value)}")
    return value


def instance(name: str, value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """Check for an instance of a class; `what` describes it in the error."""
    if not isinstance(value, kind):
        raise OptionError(f"{name} must be {what}, got {quoted(value)}")
    return value


def encodable(name: str, texts: list[str]) -> list[str]:
    """The texts as plain strings, also members of an enum.

    Raises for unpaired surrogates, which tokenizers and files refuse.
    """
    texts = [str.__str__(text) for text in texts]
    for number, text in enumerate(texts, 1):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            place = f"{name} {number:,}: {quoted(text)}" if len(texts) > 1 else f"{name} {quoted(text)}"
            raise OptionError(
                f"{place} has the unpaired surrogate {text[error.start]!r} at {error.start:,}, which is no "
                "character; replace it, as by text.encode('utf-8', 'replace').decode()"
            ) from None
    return texts


def reusable(value: Any) -> Any:
    """An iterator as a list, as it can be read once only; anything else as it is."""
    return list(value) if isinstance(value, Iterator) else value


def string_list(name: str, value: Any, what: str = "texts") -> list[str]:
    """The value as a list of strings that can be encoded; a single string is refused."""
    return encodable(name, label_list(name, value, what))


def label_list(name: str, value: Any, what: str = "texts") -> list[str]:
    """The value as a list of any strings, for pictures; a single string is refused."""
    if isinstance(value, str):
        raise OptionError(f"{name} is a list of {what}, got one string; write [{what.removesuffix('s')}]")
    return _strings(name, value, f"a list of {what}")


def _strings(name: str, value: Any, expected: str) -> list[str]:
    if isinstance(value, bytes):
        raise OptionError(f"{name} is {expected}, got bytes; decode them first")
    if not isinstance(value, Iterable) or hasattr(value, "shape"):
        raise OptionError(f"{name} is {expected}, got {quoted(value)}")
    items = list(value)
    for item in items:
        if not isinstance(item, str):
            raise OptionError(f"{name} is {expected}, got {quoted(item)} among them")
    return items


def one_or_more(name: str, value: Any, what: str = "texts") -> tuple[list[str], bool]:
    """One string or a list of strings, as a list; and whether it was one string."""
    if hasattr(value, "parameters") or hasattr(value, "start"):
        raise OptionError(
            f"{name} is a text or a list of {what}, got a {type(value).__name__}; "
            "texts come first, then the model"
        )
    if isinstance(value, str):
        return encodable(name, [value]), True
    return encodable(name, _strings(name, value, f"a {what.removesuffix('s')} or a list of {what}")), False


def as_list(name: str, value: Any, what: str) -> list[Any]:
    """An iterable as a list; a string is refused."""
    if isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "shape", None) == ():
        raise OptionError(f"{name} is {what}, got {quoted(value)}")
    return list(value)


def function_list(name: str, value: Any, count: int, what: str) -> list[Any] | None:
    """The value as a list of `count` functions, or None."""
    if value is None:
        return None
    items = as_list(name, value, f"a list of functions, one for each of the {what}")
    for item in items:
        if not callable(item):
            raise OptionError(f"{name} is a list of functions, got {quoted(item)} among them")
    if len(items) != count:
        raise OptionError(f"{name} has {len(items)} entries for {count} {what}; give one for each")
    return items
