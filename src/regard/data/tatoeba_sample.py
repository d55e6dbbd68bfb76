"""The rule by which the carried sample was taken from Tatoeba, so that anyone who has the full set can take
it again.

Common words and short sentences: what a small model can begin to translate within a minute or two on a
laptop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

ENGLISH_WORDS, GERMAN_WORDS = 600, 1000  # the most frequent ones; a pair with any other word is left out
SHORTEST, LONGEST = 3, 7  # words of a sentence; German may have one more

_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_ENGLISH, _GERMAN = re.compile(r"[A-Za-z ,.?!']+"), re.compile(r"[A-Za-zÄÖÜäöüß ,.?!]+")


def short_pairs(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, str]]:
    """Of English-German pairs the first translation of each English sentence that is short, plain and made of
    common words.
    """
    pairs = [(english, german) for english, german in rows]
    common = [
        {word for word, _ in Counter(word for pair in pairs for word in _words(pair[side])).most_common(most)}
        for side, most in enumerate((ENGLISH_WORDS, GERMAN_WORDS))
    ]
    kept: dict[str, str] = {}
    for english, german in pairs:
        if english in kept or not _ENGLISH.fullmatch(english) or not _GERMAN.fullmatch(german):
            continue
        left, right = _words(english), _words(german)
        short = SHORTEST <= len(left) <= LONGEST and SHORTEST <= len(right) <= LONGEST + 1
        if short and common[0].issuperset(left) and common[1].issuperset(right):
            kept[english] = german
    return list(kept.items())


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
