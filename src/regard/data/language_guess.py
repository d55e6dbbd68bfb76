"""Guess whether a text is German, English or French: naive Bayes over letter trigrams.

The table `language_trigrams.txt` was learned from Tatoeba (tatoeba.org, CC BY 2.0) by
`python -m benchmarks.language_guesser`, which also reports the accuracy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("language_trigrams.txt")
UNIT = 0.5  # nats per step of a weight: a is 0, b is −0.5, …
MIN_MARGIN = 1.0  # nats between the best language and the second; below it the guess is None
MAX_CHARACTERS = 2000  # read of a text; more changes nothing


def guess_language(text: str) -> str | None:
    """The language of a text as a code, "de", "en" or "fr"; None if the letters do not tell.

    >>> guess_language("Wo ist der Bahnhof?"), guess_language("Où est la gare ?"), guess_language("2 + 2")
    ('de', 'fr', None)
    """
    languages, table = _table()
    totals = [0.0] * len(languages)
    for trigram in trigrams(text[:MAX_CHARACTERS]):
        if trigram in table:
            totals = [total + weight for total, weight in zip(totals, table[trigram], strict=True)]
    best, second = sorted(totals, reverse=True)[:2]
    return languages[totals.index(best)] if best - second >= MIN_MARGIN else None


def guess_language_of(texts: Iterable[str]) -> str | None:
    """The language of several texts together."""
    joined = ""
    for text in texts:
        joined += f" {text}"
        if len(joined) >= MAX_CHARACTERS:
            break
    return guess_language(joined)


def guessed_languages() -> tuple[str, ...]:
    """The languages that can be guessed."""
    return _table()[0]


def trigrams(text: str) -> list[str]:
    """Trigrams of the letters of a text in lower case; words are separated by one space.

    >>> trigrams("Ein Ei")
    [' ei', 'ein', 'in ', 'n e', ' ei', 'ei ']
    """
    words = re.findall(r"[^\W\d_]+", text.lower())
    letters = f" {' '.join(words)} "
    return [letters[i : i + 3] for i in range(len(letters) - 2)]


@cache
def _table() -> tuple[tuple[str, ...], dict[str, tuple[float, ...]]]:
    """The languages, and of each trigram the log-probability per language relative to the best."""
    header, *lines = TABLE.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    weights = {line[:3]: tuple(-UNIT * (ord(step) - ord("a")) for step in line[3:]) for line in lines}
    return tuple(header.split()), weights
