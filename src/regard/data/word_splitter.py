"""Split plain text into words with their positions: web addresses, mentions, hashtags, words, punctuation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

FREQUENT = 100  # @ and # are separate words if they are among this many most frequent words

_WORD = r"\w+(?:['’.\-]\w+)*"
_PATTERN = r"(?:https?://|www\.)\S+|[{signs}]{word}|{word}|[^\w\s]"


class Word(NamedTuple):
    """A word and its position: text[start:stop]."""

    text: str
    start: int
    stop: int


class WordSplitter:
    """Splits a text into words. @ and # are separate words if they are in `separate`."""

    def __init__(self, separate: str = "") -> None:
        signs = "".join(sign for sign in "@#" if sign not in separate)
        pattern = _PATTERN if signs else _PATTERN.replace("[{signs}]{word}|", "")
        self._find = re.compile(
            pattern.format(signs=signs, word=_WORD) if signs else pattern.format(word=_WORD)
        ).finditer

    @classmethod
    def like(cls, vocabulary: Mapping[str, int]) -> WordSplitter:
        """The splitter for a vocabulary: @ and # are separate words if they are among its frequent words.

        Ids of the vocabulary are in order of frequency.
        """
        return cls("".join(sign for sign in "@#" if vocabulary.get(sign, FREQUENT) < FREQUENT))

    def __call__(self, text: str) -> list[Word]:
        return [Word(match.group(), match.start(), match.end()) for match in self._find(text)]


def split_at_spaces(text: str) -> list[Word]:
    """The words of a text that is already split by spaces."""
    return [Word(match.group(), match.start(), match.end()) for match in re.finditer(r"[^ ]+", text)]
