"""Texts in capitals, for models that learned few of them: translated in lower case, then written in capitals.

`"decoding": {"lower_capitals": true}` in card.json says that a model needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from regard.data.tokenizer import split_language
from regard.decoding.constraints import NO_CONSTRAINTS, Constraints
from regard.models.target_language import target_languages


def lowers_capitals(model: Any) -> bool:
    decoding = (getattr(model, "card", None) or {}).get("decoding")
    return isinstance(decoding, dict) and decoding.get("lower_capitals") is True


def in_capitals(text: str) -> bool:
    """True if a text has no small letter; one word is enough with a ! or ?, since it may be a name (NATO)."""
    text = text.strip().replace("ß", "")  # people type it between capitals
    if text != text.upper():
        return False
    words = text.split()
    letters = max((sum(c.lower() != c for c in word) for word in words), default=0)
    return letters >= 2 and (len(words) >= 2 or text.endswith(("!", "?")))


def lower_capitals(
    texts: Sequence[str], model: Any, constraints: Constraints = NO_CONSTRAINTS
) -> tuple[list[str], list[bool]]:
    """The texts, those in capitals in lower case; and which they are. A language token stays as it is.

    Texts with a prefix or required words stay too: these have a case of their own.
    """
    if not lowers_capitals(model):
        return list(texts), [False] * len(texts)
    split = [split_language(text, target_languages(model)) for text in texts]
    free = (not (prefix or any(phrases)) for prefix, phrases in constraints.of_texts(len(texts)))
    found = [is_free and in_capitals(rest) for (_, rest), is_free in zip(split, free, strict=True)]
    lowered = [
        text if not capitals else rest.lower() if code is None else f">>{code}<< {rest.lower()}"
        for text, (code, rest), capitals in zip(texts, split, found, strict=True)
    ]
    return lowered, found


def forbid_lower_case(constraints: Constraints, capitals: Sequence[bool]) -> Constraints:
    """Forbid words in capitals in lower case too if texts were lowered: the outputs become capitals later."""
    words = [word for word in constraints.forbidden if word == word.upper()]
    if not any(capitals) or not words:
        return constraints
    forms = dict.fromkeys(form for word in words for form in (word.lower(), word.capitalize(), word.title()))
    return replace(constraints, forbidden=(*constraints.forbidden, *forms))
