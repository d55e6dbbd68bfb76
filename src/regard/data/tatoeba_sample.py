"""Select the bundled sample from the full Tatoeba corpus, so that it can be reproduced.

The sample has short sentences of common words, which a small model learns to translate within a minute or
two on a laptop.
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
    """Select English-German pairs of short sentences of common words, one pair per English sentence."""
    pairs = [(english, german) for english, german in rows]
    common = [
        {word for word, _ in Counter(word for pair in pairs for word in _words(pair[side])).most_common(most)}
        for side, most in enumerate((ENGLISH_WORDS, GERMAN_WORDS))
    ]
    selected: dict[str, str] = {}
    for english, german in pairs:
        if english in selected or not _ENGLISH.fullmatch(english) or not _GERMAN.fullmatch(german):
            continue
        english_words, german_words = _words(english), _words(german)
        short = SHORTEST <= len(english_words) <= LONGEST and SHORTEST <= len(german_words) <= LONGEST + 1
        if short and common[0].issuperset(english_words) and common[1].issuperset(german_words):
            selected[english] = german
    return list(selected.items())


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
