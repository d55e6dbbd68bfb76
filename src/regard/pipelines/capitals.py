"""Texts in capitals, for models that learned few of them: text_form.py lowers them, and writes the
translations in capitals.

`"decoding": {"lower_capitals": true}` in card.json says that a model needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from regard.decoding.constraints import Constraints


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


def forbid_lower_case(constraints: Constraints, capitals: Sequence[bool]) -> Constraints:
    """Forbid words in capitals in lower case too if texts were lowered: the outputs become capitals later."""
    words = [word for word in constraints.forbidden if word == word.upper()]
    if not any(capitals) or not words:
        return constraints
    forms = dict.fromkeys(form for word in words for form in (word.lower(), word.capitalize(), word.title()))
    return replace(constraints, forbidden=(*constraints.forbidden, *forms))
