"""How well a language model predicts a text: perplexity and bits per character, from one summed negative log-likelihood.

The model gives −ln p of every token; `nll` is their sum over the text, in nats. Divided by a count it becomes a rate:

- perplexity = e^(nll / units). Per token it depends on the vocabulary, and models with other tokens cannot be compared by it. Per
  word it can: the nll of all subwords, divided by the number of words. Word-level benchmarks (WikiText) count the words apart by
  spaces and one end of line for each line, and so does `measure`.
- bits per character = nll / (ln 2 · characters): Unicode code points, the line ends among them. Bits per byte: the same over UTF-8.
  For a character-level model these are its per-token figures in base 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from regard.errors import DataError, OptionError


def perplexity(nll: float, units: int) -> float:
    """e^(nll / units): between how many equally likely words (or tokens) the model hesitates. Infinite where e^x overflows."""
    rate = _rate(nll, units)
    return math.exp(rate) if rate < 709 else math.inf if rate == rate else rate


def bits(nll: float, units: int) -> float:
    """nll / (ln 2 · units): how many bits one character (or byte, or token) takes when the model compresses the text."""
    return _rate(nll, units) / math.log(2)


@dataclass(frozen=True)
class TextCounts:
    """How much text there is. Every line end counts: as one word, one character, one byte."""

    lines: int
    words: int
    characters: int
    bytes: int


def count_text(lines: Iterable[str]) -> TextCounts:
    """Count lines (without their line ends), words apart by spaces, characters and UTF-8 bytes, the line ends among each."""
    if isinstance(lines, str):
        raise DataError(f"a text is measured line by line, got one text {lines!r:.60}; split it into lines")
    total = [0, 0, 0, 0]
    for line in lines:
        total[0] += 1
        total[1] += len(line.split()) + 1
        total[2] += len(line) + 1
        total[3] += len(line.encode("utf-8", errors="surrogatepass")) + 1
    return TextCounts(*total)


@dataclass(frozen=True)
class LanguageScores:
    """A model's summed −ln p over `tokens` predicted tokens of a text, and the rates that follow."""

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
        """Per Unicode character, line ends among them."""
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
        """The rates, with what they were divided by."""
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
        raise OptionError(f"there must be at least one unit to divide by, got {units}")
    if nll < -1e-6 * units:  # less is rounding
        raise OptionError(
            f"nll must be a summed negative log-likelihood, which is never below 0, got {nll:g}; turn its sign"
        )
    return nll / units
