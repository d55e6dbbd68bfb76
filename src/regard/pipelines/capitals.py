"""Texts in capitals, for models that learned few of them: translated in lower case, then written in capitals.

`"decoding": {"lower_capitals": true}` in card.json says that a model needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.data.tokenizer import split_language
from regard.models.target_language import target_languages


def lowers_capitals(model: Any) -> bool:
    card = getattr(model, "card", None) or {}
    return bool((card.get("decoding") or {}).get("lower_capitals"))


def in_capitals(text: str) -> bool:
    """True if a text has no small letter and at least two words, not all of one letter: one may be a name."""
    letters = [sum(c.lower() != c.upper() for c in word) for word in text.split()]
    return sum(count > 0 for count in letters) >= 2 and max(letters) >= 2 and text == text.upper()


def lower_capitals(texts: Sequence[str], model: Any) -> tuple[list[str], list[bool]]:
    """The texts, those in capitals in lower case; and which they are. A language token stays as it is."""
    if not lowers_capitals(model):
        return list(texts), [False] * len(texts)
    split = [split_language(text, target_languages(model)) for text in texts]
    found = [in_capitals(rest) for _, rest in split]
    lowered = [
        text if not capitals else rest.lower() if code is None else f">>{code}<< {rest.lower()}"
        for text, (code, rest), capitals in zip(texts, split, found, strict=True)
    ]
    return lowered, found
