"""Encode a corpus quickly: each distinct word is encoded once and then taken from a cache.

No token spans the space between two words (see `tokenizer`), so the tokens of a text are the concatenated
tokens of its words. A text with several spaces in a row is an exception and is encoded as a whole. Results
are NumPy arrays: lists of Python integers would take too much memory for a corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from regard.data.tokenizer import UNK, Tokenizer

Numbers = NDArray[np.int64]
MAX_WORDS = 200_000  # in the cache; a full cache is emptied
BLOCK = 4096  # texts per call of the tokenizer


@dataclass(frozen=True)
class Encoded:
    """The tokens of several texts, concatenated.

    A piece is a pre-token in the sense of `tokenizers`: BPE merges never cross its ends.
    """

    tokens: Numbers
    lengths: Numbers  # number of tokens of each text
    pieces: Numbers  # number of tokens of each piece
    piece_counts: Numbers  # number of pieces of each text

    def select(self, keep: NDArray[np.bool_]) -> Encoded:
        """Return the texts where `keep` is True."""
        if keep.all():
            return self
        return Encoded(
            self.tokens[np.repeat(keep, self.lengths)],
            self.lengths[keep],
            self.pieces[np.repeat(keep, self.piece_counts)],
            self.piece_counts[keep],
        )

    def take(self, rows: Numbers) -> Encoded:
        """Return the texts with these indices, in this order."""
        starts = np.cumsum(self.lengths) - self.lengths
        piece_starts = np.cumsum(self.piece_counts) - self.piece_counts
        lengths, piece_counts = self.lengths[rows], self.piece_counts[rows]
        return Encoded(
            self.tokens[ragged_indices(starts[rows], lengths)],
            lengths,
            self.pieces[ragged_indices(piece_starts[rows], piece_counts)],
            piece_counts,
        )


class CachedEncoder:
    """A tokenizer with a cache of encoded words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._clear()

    def _clear(self) -> None:
        self._word_index: dict[str, int] = {}
        self._encoded_words = _concatenate([])  # in the order of `_word_index`
        self._uncacheable: set[str] = set()  # a text with one of these words is encoded as a whole

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode texts; the result equals `Tokenizer.encode`."""
        kind = self.tokenizer.kind
        if kind == "sentencepiece":  # it has a cache of its own
            return self._encode_whole(texts)
        if kind == "character":
            simple = not self.tokenizer.lowercase and not self.tokenizer.languages
            return self._encode_characters(texts) if simple else self._encode_whole(texts)
        split = [[text] if kind == "label" else text.split(" ") for text in texts]  # a label is one word
        self._add_to_cache(split)
        # ">>de<<" is a language token as the first word of a text, and ordinary characters anywhere else. The
        # cache has it as a first word.
        uncacheable_later = self._uncacheable | {f">>{code}<<" for code in self.tokenizer.languages}
        if not uncacheable_later:
            return self._look_up(split)
        whole = [
            i
            for i, words in enumerate(split)
            if words[0] in self._uncacheable or not uncacheable_later.isdisjoint(words[1:])
        ]
        return self._encode_mixed(texts, split, whole) if whole else self._look_up(split)

    def _add_to_cache(self, split: list[list[str]]) -> None:
        if len(self._word_index) > MAX_WORDS:
            self._clear()
        index = self._word_index
        new = list(dict.fromkeys(word for words in split for word in words if word not in index))
        if not new:
            return
        index.update(zip(new, range(len(index), len(index) + len(new)), strict=True))
        self._encoded_words = _concatenate([self._encoded_words, self._encode_whole(new)])
        if self.tokenizer.kind not in ("word", "label"):  # these two ignore the number of spaces
            # An empty word comes from two spaces in a row. The space before it, or before a word that starts
            # with other whitespace, may form one piece with the whitespace around it.
            self._uncacheable.update(word for word in new if not word or word[0].isspace())

    def _look_up(self, split: list[list[str]]) -> Encoded:
        """Encode texts of cached words."""
        counts = np.fromiter(map(len, split), np.int64, len(split))
        words = map(self._word_index.__getitem__, chain.from_iterable(split))
        rows = self._encoded_words.take(np.fromiter(words, np.int64, int(counts.sum())))
        return Encoded(
            rows.tokens,
            segment_sums(rows.lengths, counts),
            rows.pieces,
            segment_sums(rows.piece_counts, counts),
        )

    def _encode_mixed(self, texts: Sequence[str], split: list[list[str]], whole: list[int]) -> Encoded:
        """Encode the texts with the indices `whole` as a whole and the others by their words, in order."""
        is_whole = set(whole)
        cached = [i for i in range(len(texts)) if i not in is_whole]
        encoded = [self._encode_whole([texts[i] for i in whole]), self._look_up([split[i] for i in cached])]
        return _concatenate(encoded).take(np.argsort(np.asarray(whole + cached)))

    def _encode_whole(self, texts: Sequence[str]) -> Encoded:
        return _concatenate([self._block(texts[i : i + BLOCK]) for i in range(0, len(texts), BLOCK)])

    def _block(self, texts: Sequence[str]) -> Encoded:
        encoded = self.tokenizer.encode_pieces(texts)
        lengths = np.fromiter((len(ids) for ids, _ in encoded), np.int64, len(texts))
        tokens = np.fromiter(chain.from_iterable(ids for ids, _ in encoded), np.int64, int(lengths.sum()))
        # For each token the index of its piece and of its text; a piece starts where one of them changes.
        piece = np.fromiter(chain.from_iterable(pieces for _, pieces in encoded), np.int64, len(tokens))
        text = np.repeat(np.arange(len(texts)), lengths)
        is_start = np.ones(len(tokens), bool)
        is_start[1:] = (piece[1:] != piece[:-1]) | (text[1:] != text[:-1])
        starts = np.flatnonzero(is_start)
        return Encoded(
            tokens,
            lengths,
            np.diff(np.append(starts, len(tokens))),
            np.bincount(text[starts], minlength=len(texts)),
        )

    def _encode_characters(self, texts: Sequence[str]) -> Encoded:
        """Encode texts by looking up their code points."""
        vocabulary = self.tokenizer.vocabulary.items()
        pairs = sorted((ord(character), token) for character, token in vocabulary if len(character) == 1)
        code_points, ids = np.asarray(pairs, np.int64).T
        texts = [self.tokenizer.with_known_spaces(text) for text in texts]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        characters = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4").astype(np.int64)
        nearest = np.minimum(np.searchsorted(code_points, characters), len(code_points) - 1)
        tokens = np.where(code_points[nearest] == characters, ids[nearest], UNK)
        return Encoded(tokens, lengths, np.ones(len(tokens), np.int64), lengths)


def _concatenate(encoded: Sequence[Encoded]) -> Encoded:
    def column(name: str) -> Numbers:
        return np.concatenate([np.empty(0, np.int64), *(getattr(texts, name) for texts in encoded)])

    return Encoded(column("tokens"), column("lengths"), column("pieces"), column("piece_counts"))


def ragged_indices(starts: Numbers, lengths: Numbers) -> Numbers:
    """The indices start … start + length − 1 of each item, concatenated."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(int(ends[-1]) if len(ends) else 0)


def segment_sums(values: Numbers, counts: Numbers) -> Numbers:
    """The sums of the first counts[0] values, of the next counts[1], and so on."""
    total = np.concatenate(([0], np.cumsum(values)))
    ends = np.cumsum(counts)
    return total[ends] - total[ends - counts]
