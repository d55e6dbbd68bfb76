"""Language model metrics: perplexity and bits per character, from a summed negative log-likelihood.

`nll` is the sum of −ln p over all tokens of a text, in nats.

- perplexity = e^(nll / units). Per token it depends on the vocabulary; per word it can be compared between
  vocabularies. Like word-level benchmarks (WikiText), `count_text` counts words separated by white space and
  one line end per line.
- bits per character = nll / (ln 2 · characters): Unicode code points including line ends. Bits per byte: the
  same for UTF-8 bytes. For a character-level model they equal its cross-entropy in bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from regard.errors import DataError, OptionError


def perplexity(nll: float, units: int) -> float:
    """e^(nll / units), the effective number of equally likely choices. Infinite if e^x overflows."""
    rate = _rate(nll, units)
    return math.exp(rate) if rate < 709 else math.inf if rate == rate else rate


def bits(nll: float, units: int) -> float:
    """nll / (ln 2 · units): bits per character, byte or token."""
    return _rate(nll, units) / math.log(2)


@dataclass(frozen=True)
class TextCounts:
    """Size of a text. Every line end counts as one word, one character and one byte."""

    lines: int
    words: int
    characters: int
    bytes: int


def count_text(lines: Iterable[str]) -> TextCounts:
    """Count lines, words, characters and UTF-8 bytes of lines given without their line ends."""
    if isinstance(lines, str):
        raise DataError(f"text must be a list of lines, got one text {lines!r:.60}; split it into lines")
    total = [0, 0, 0, 0]
    for line in lines:
        total[0] += 1
        total[1] += len(line.split()) + 1
        total[2] += len(line) + 1
        total[3] += len(line.encode("utf-8", errors="surrogatepass")) + 1
    return TextCounts(*total)


@dataclass(frozen=True)
class LanguageScores:
    """Summed −ln p of `tokens` predicted tokens, and the metrics derived from it."""

    nll: float
    tokens: int
    text: TextCounts

    @property
    def perplexity(self) -> float:
        """Per token of the model's own vocabulary."""
        return perplexity(self.nll, self.tokens)

    @property
    def word_perplexity(self) -> float:
        """Per word and line end: comparable between vocabularies."""
        return perplexity(self.nll, self.text.words)

    @property
    def bits_per_character(self) -> float:
        """Per Unicode character, including line ends."""
        return bits(self.nll, self.text.characters)

    @property
    def bits_per_byte(self) -> float:
        """Per byte of UTF-8."""
        return bits(self.nll, self.text.bytes)

    def as_dict(self) -> dict[str, Any]:
        """Counts and rates, for JSON."""
        rates = {
            name: getattr(self, name)
            for name in ("perplexity", "word_perplexity", "bits_per_character", "bits_per_byte")
        }
        return {"nll": self.nll, "tokens": self.tokens, **vars(self.text), **rates}

    def __str__(self) -> str:
        """The metrics and their denominators."""
        text = self.text
        return "\n".join(
            [
                f"perplexity per token   {self.perplexity:10.2f}   {self.tokens} tokens",
                f"perplexity per word    {self.word_perplexity:10.2f}   {text.words} words and line ends",
                f"bits per character     {self.bits_per_character:10.3f}   {text.characters} characters",
                f"bits per byte          {self.bits_per_byte:10.3f}   {text.bytes} bytes",
            ]
        )


def _rate(nll: float, units: int) -> float:
    if units < 1:
        raise OptionError(f"units must be at least 1, got {units}")
    if nll < -1e-6 * units:  # tolerate rounding
        raise OptionError(
            f"nll is a summed negative log-likelihood and never below 0, got {nll:g}; flip its sign"
        )
    return nll / units
