"""E-mail and web addresses: translators change their letters, so they are copied from the source.

The word of a translation that is most like an address of the source becomes this address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

_MAIL = r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"
_LINK = r"(?:https?://|www\.)[^\s<>\"“”„«»]*[\w/]"
_DOMAIN = r"\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|edu|gov|info|io|eu|de|fr|at|ch|be|uk|us)\b(?!\w)"
ADDRESS = re.compile(f"{_MAIL}|{_LINK}|{_DOMAIN}", re.IGNORECASE)
LIKE = 0.6  # least similarity of a word and an address
LONGEST = 300  # longer addresses are not compared
_MARKS = ".,;:!?…()[]<>\"'“”„‘’«»"
_SPACES = re.compile(r"(\s+)")


def addresses(text: str) -> tuple[str, ...]:
    """The e-mail and web addresses in a text."""
    return tuple(found for found in ADDRESS.findall(text) if len(found) <= LONGEST)


def copy_addresses(pieces: Iterable[str], expected: Sequence[str]) -> Iterator[str]:
    """The pieces of a translation with the addresses of its source; a word is held back until it ends."""
    left, word = list(expected), ""
    for piece in pieces:
        *parts, word = _SPACES.split(word + piece)
        yield from (_corrected(part, left) for part in parts if part)
    if word:
        yield _corrected(word, left)


def _corrected(word: str, left: list[str]) -> str:
    """The word, or the address it stands for, which is then removed from those that are left."""
    core = word.strip(_MARKS)
    if not left or len(core) > LONGEST or not re.search(r"@|://|\w\.\w", core):
        return word
    likeness = {address: SequenceMatcher(None, core.lower(), address.lower()).ratio() for address in left}
    best = max(left, key=likeness.__getitem__)
    if likeness[best] < LIKE:
        return word
    left.remove(best)
    return word.replace(core, best, 1)
