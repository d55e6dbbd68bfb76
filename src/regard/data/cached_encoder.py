"""Encode a corpus quickly: each distinct word is encoded once and then taken from a cache.

A piece never reaches over a single space before a word (see `tokenizer`), so a text with such spaces encodes
to the encodings of its words, one after the other. A text with several spaces in a row is encoded whole.
Arrays come out, not lists: a corpus has too many tokens for Python numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenizer import UNK, Tokenizer

Numbers = NDArray[np.int64]
MAX_WORDS = 200_000  # in the cache; when it is full it is emptied, which costs little


@dataclass(frozen=True)
class Encoded:
    """Encoded texts, concatenated. A text consists of pre-tokens (pieces, which merges stay within), these of
    tokens.
    """

    tokens: Numbers
    lengths: Numbers  # tokens of each text
    pieces: Numbers  # tokens of each piece
    piece_counts: Numbers  # pieces of each text

    def only(self, keep: NDArray[np.bool_]) -> Encoded:
        """Keep only some texts."""
        if keep.all():
            return self
        return Encoded(
            self.tokens[np.repeat(keep, self.lengths)],
            self.lengths[keep],
            self.pieces[np.repeat(keep, self.piece_counts)],
            self.piece_counts[keep],
        )


class CachedEncoder:
    """A tokenizer with a cache of words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._forget()

    def _forget(self) -> None:
        self._number: dict[str, int] = {}
        self._odd: set[str] = set()
        self._parts = [_join([])]  # what is known of words 0, 1, …; joined when it is next needed

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode texts; the result equals `Tokenizer.encode`."""
        if self.tokenizer.kind == "character":
            return self._characters(texts) if not self.tokenizer.lowercase else self._whole(texts)
        split = [
            [text] if self.tokenizer.kind == "label" else text.split(" ") for text in texts
        ]  # a label is one word
        self._learn(split)
        odd = [i for i, words in enumerate(split) if not self._odd.isdisjoint(words)] if self._odd else []
        return self._mixed(texts, split, odd) if odd else self._words(split)

    def _learn(self, split: list[list[str]]) -> None:
        if len(self._number) > MAX_WORDS:
            self._forget()
        number = self._number
        if new := list(dict.fromkeys(word for words in split for word in words if word not in number)):
            number.update(zip(new, range(len(number), len(number) + len(new)), strict=True))
            self._parts = [_join([*self._parts, self._whole(new)])]
            if self.tokenizer.kind not in (
                "word",
                "label",
            ):  # between whose words any number of spaces is nothing
                # A space before such a word may form one piece with the spaces around it: its text must be
                # encoded whole.
                self._odd.update(word for word in new if not word or word[0].isspace())

    def _words(self, split: list[list[str]]) -> Encoded:
        number = self._number
        known = self._parts[0]
        counts = np.fromiter(map(len, split), np.int64, len(split))
        words = np.fromiter(map(number.__getitem__, chain.from_iterable(split)), np.int64, int(counts.sum()))
        lengths, piece_counts = known.lengths[words], known.piece_counts[words]
        starts, piece_starts = (
            np.cumsum(known.lengths) - known.lengths,
            np.cumsum(known.piece_counts) - known.piece_counts,
        )
        return Encoded(
            known.tokens[ragged(starts[words], lengths)],
            sums(lengths, counts),
            known.pieces[ragged(piece_starts[words], piece_counts)],
            sums(piece_counts, counts),
        )

    def _mixed(self, texts: Sequence[str], split: list[list[str]], odd: list[int]) -> Encoded:
        """Encode some texts whole, the others by their words, in order."""
        is_odd = set(odd)
        even = [i for i in range(len(texts)) if i not in is_odd]
        both = _join([self._whole([texts[i] for i in odd]), self._words([split[i] for i in even])])
        order = np.argsort(np.asarray(odd + even))
        starts, piece_starts = (
            np.cumsum(both.lengths) - both.lengths,
            np.cumsum(both.piece_counts) - both.piece_counts,
        )
        lengths, piece_counts = both.lengths[order], both.piece_counts[order]
        return Encoded(
            both.tokens[ragged(starts[order], lengths)],
            lengths,
            both.pieces[ragged(piece_starts[order], piece_counts)],
            piece_counts,
        )

    def _whole(self, texts: Sequence[str]) -> Encoded:
        return _join([self._block(texts[at : at + 4096]) for at in range(0, len(texts), 4096)])

    def _block(self, texts: Sequence[str]) -> Encoded:
        found = self.tokenizer.encode_pieces(texts)
        lengths = np.fromiter((len(ids) for ids, _ in found), np.int64, len(texts))
        tokens = np.fromiter(chain.from_iterable(ids for ids, _ in found), np.int64, int(lengths.sum()))
        piece = np.fromiter(chain.from_iterable(pieces for _, pieces in found), np.int64, len(tokens))
        text = np.repeat(np.arange(len(texts)), lengths)
        begins = np.ones(len(tokens), bool)
        begins[1:] = (piece[1:] != piece[:-1]) | (text[1:] != text[:-1])
        starts = np.flatnonzero(begins)
        return Encoded(
            tokens,
            lengths,
            np.diff(np.append(starts, len(tokens))),
            np.bincount(text[starts], minlength=len(texts)),
        )

    def _characters(self, texts: Sequence[str]) -> Encoded:
        """Encode characters by looking up their code points, without a model."""
        known = sorted(
            (ord(piece), number) for piece, number in self.tokenizer.vocabulary.items() if len(piece) == 1
        )
        points, numbers = np.asarray(known, np.int64).T
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        given = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4").astype(np.int64)
        at = np.minimum(np.searchsorted(points, given), len(points) - 1)
        tokens = np.where(points[at] == given, numbers[at], UNK)
        return Encoded(tokens, lengths, np.ones(len(tokens), np.int64), lengths)


def _join(parts: Sequence[Encoded]) -> Encoded:
    columns = ("tokens", "lengths", "pieces", "piece_counts")
    return Encoded(
        *(
            np.concatenate([np.empty(0, np.int64), *(getattr(part, name) for part in parts)])
            for name in columns
        )
    )


def ragged(starts: Numbers, lengths: Numbers) -> Numbers:
    """The indices start … start + length − 1 of each item, concatenated."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]) if len(ends) else 0)


def sums(values: Numbers, counts: Numbers) -> Numbers:
    """The sums of the first counts[0] values, of the next counts[1], and so on."""
    total = np.concatenate(([0], np.cumsum(values)))
    ends = np.cumsum(counts)
    return total[ends] - total[ends - counts]
