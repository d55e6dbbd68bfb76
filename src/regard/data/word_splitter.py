"""The words of a plain text and where they stand in it: addresses, mentions and hashtags, words with their apostrophes, signs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

OFTEN = 100  # how far up in a vocabulary a sign stands that is a word of its own

_WORD = r"\w+(?:['’.\-]\w+)*"
_PATTERN = r"(?:https?://|www\.)\S+|[{signs}]{word}|{word}|[^\w\s]"


class Word(NamedTuple):
    """A word and its place: text[start:stop]."""

    text: str
    start: int
    stop: int


class WordSplitter:
    """Cuts a text into words. Of @name and #tag the sign is a word of its own where `apart` has it."""

    def __init__(self, apart: str = "") -> None:
        signs = "".join(sign for sign in "@#" if sign not in apart)
        pattern = _PATTERN if signs else _PATTERN.replace("[{signs}]{word}|", "")
        self._find = re.compile(
            pattern.format(signs=signs, word=_WORD) if signs else pattern.format(word=_WORD)
        ).finditer

    @classmethod
    def like(cls, vocabulary: Mapping[str, int]) -> WordSplitter:
        """As the text was cut that a vocabulary was learned from, its most frequent words first."""
        return cls("".join(sign for sign in "@#" if vocabulary.get(sign, OFTEN) < OFTEN))

    def __call__(self, text: str) -> list[Word]:
        return [Word(found.group(), found.start(), found.end()) for found in self._find(text)]


def split_at_spaces(text: str) -> list[Word]:
    """The words of a text that is cut already, with spaces between them."""
    return [Word(found.group(), found.start(), found.end()) for found in re.finditer(r"[^ ]+", text)]
