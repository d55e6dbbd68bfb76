"""BPE-dropout (Provilkov et al. 2020): random segmentations by skipping merges, reproducible from a seed.

`tokenizers` has BPE-dropout, but its random generator cannot be seeded. This module does it on arrays: words
of equal length are the rows of a matrix, and all rows apply their next merge at the same time. Algorithm 1 of
the paper: drop every possible merge with probability p; apply the remaining merge that was learned first;
stop when none remains.

A word type gets at most POOL segmentations per call, and each of its occurrences draws one of them. A
frequent word is not segmented again at every occurrence, so preparing a corpus takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from regard.data.cached_encoder import ragged_indices
from regard.data.tokenizer import EOS, UNK, Tokenizer
from regard.data.tokenizer_training import language_token
from regard.errors import OptionError

POOL = 16
MAX_SYMBOLS = 512  # per word; longer ones (such as a line without spaces) are not varied
_ROWS = 1 << 14  # rows of one matrix, so that it fits into the processor's cache
Numbers = NDArray[np.int64]
_NEVER = np.iinfo(np.int32).max


class BpeDropout:
    """Random segmentations with the merges of a bpe or byte-bpe tokenizer."""

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        if tokenizer.kind not in ("bpe", "byte-bpe"):
            raise OptionError(
                f"BPE-dropout is for the kinds bpe and byte-bpe, got {tokenizer.kind}; "
                "set tokenizer.dropout to 0"
            )
        if not 0 <= rate < 1:
            raise OptionError(f"tokenizer.dropout must be at least 0 and below 1, got {rate}")
        self.rate, self._size = rate, len(tokenizer)
        ids = tokenizer.vocabulary
        merged = [
            (ids[left] * self._size + ids[right], ids[left + right]) for left, right in tokenizer.merges
        ]
        pairs = np.asarray(merged, np.int64).reshape(-1, 2)
        order = np.argsort(pairs[:, 0], kind="stable")
        self._pairs, self._results = pairs[order, 0], pairs[order, 1]
        self._ranks = order.astype(np.int32)
        # The symbols of each vocabulary entry: its characters (bytes for byte-bpe), which are entries too.
        languages = {ids[language_token(code)] for code in tokenizer.languages}
        spellings = [[UNK]] * len(tokenizer)
        for piece, i in ids.items():
            if i > EOS:
                spellings[i] = [i] if i in languages else [ids[c] for c in piece]
        self._spelling_offsets = np.concatenate(([0], np.cumsum([len(spelling) for spelling in spellings])))
        self._spelling = np.asarray([i for spelling in spellings for i in spelling], np.int64)

    def variants(
        self, tokens: Numbers, words: Numbers, count: int, rng: np.random.Generator
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield `count` random segmentations, each as its tokens and the number of tokens of each word.

        Args:
            tokens: the tokens of all words without dropout, concatenated.
            words: the number of tokens of each word.
            count: number of segmentations.
            rng: the source of randomness.
        """
        starts = np.cumsum(words) - words
        _, first, word_type, occurrences = np.unique(
            _hashes(tokens, words), return_index=True, return_inverse=True, return_counts=True
        )
        pool, pool_words, amount = self._pool(tokens, starts[first], words[first], occurrences, count, rng)
        pool_starts = np.cumsum(pool_words) - pool_words
        offset = np.cumsum(amount) - amount
        for _ in range(count):
            pick = offset[word_type] + (rng.random(len(word_type)) * amount[word_type]).astype(np.int64)
            lengths = pool_words[pick]
            yield pool[ragged_indices(pool_starts[pick], lengths)], lengths

    def _pool(
        self,
        tokens: Numbers,
        starts: Numbers,
        words: Numbers,
        occurrences: Numbers,
        count: int,
        rng: np.random.Generator,
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Segmentations of each word type, concatenated; their token counts; their number per word type."""
        plain = tokens[ragged_indices(starts, words)]
        sizes = np.diff(self._spelling_offsets)[plain]
        symbols = self._spelling[ragged_indices(self._spelling_offsets[plain], sizes)]
        bounds = np.concatenate(([0], np.cumsum(words)))
        symbol_counts = np.add.reduceat(sizes, bounds[:-1]) if len(words) else words  # symbols of each type
        amount = np.where(
            (symbol_counts > 1) & (symbol_counts <= MAX_SYMBOLS), np.minimum(occurrences * count, POOL), 1
        )
        symbol_starts = np.cumsum(symbol_counts) - symbol_counts
        word_type = np.repeat(np.arange(len(words)), amount)
        pieces: list[Numbers] = []
        owners: list[Numbers] = []
        lengths: list[Numbers] = []

        def keep(owner: Numbers, tokens: Numbers, length: Numbers) -> None:
            owners.append(owner)
            pieces.append(tokens)
            lengths.append(length)

        # Words of one symbol and very long words are not varied.
        unvaried = np.flatnonzero((symbol_counts[word_type] == 1) | (symbol_counts[word_type] > MAX_SYMBOLS))
        unvaried_types = word_type[unvaried]
        keep(
            unvaried,
            plain[ragged_indices(bounds[:-1][unvaried_types], words[unvaried_types])],
            words[unvaried_types],
        )
        for length in np.unique(symbol_counts[(symbol_counts > 1) & (symbol_counts <= MAX_SYMBOLS)]):
            group = np.flatnonzero(symbol_counts[word_type] == length)
            for start in range(0, len(group), _ROWS):
                chunk = group[start : start + _ROWS]
                matrix = symbols[symbol_starts[word_type[chunk]][:, None] + np.arange(length)]
                for rows, merged in self._merge(matrix, rng):
                    keep(chunk[rows], merged.ravel(), np.full(len(rows), merged.shape[1]))
        owner, length = np.concatenate(owners), np.concatenate(lengths)
        flat_starts = np.cumsum(length) - length
        order = np.argsort(owner)
        flat = np.concatenate(pieces)
        return flat[ragged_indices(flat_starts[order], length[order])], length[order], amount

    def _merge(self, matrix: Numbers, rng: np.random.Generator) -> Iterator[tuple[Numbers, Numbers]]:
        """Merge each row until no merge is left or all are dropped; yield rows by their final length."""
        rows = np.arange(len(matrix))
        rank, result = self._look_up(matrix[:, :-1], matrix[:, 1:])
        while len(rows):
            if matrix.shape[1] == 1:
                yield rows, matrix
                return
            candidates = np.where(rng.random(rank.shape, np.float32) < self.rate, _NEVER, rank)
            best = candidates.argmin(1)  # the leftmost of equal ranks
            row_index = np.arange(len(rows))
            unfinished = candidates[row_index, best] != _NEVER
            if not unfinished.all():
                yield rows[~unfinished], matrix[~unfinished]
                rows, matrix, rank, result, best = (
                    rows[unfinished],
                    matrix[unfinished],
                    rank[unfinished],
                    result[unfinished],
                    best[unfinished],
                )
                row_index = np.arange(len(rows))
            matrix[row_index, best] = result[row_index, best]
            matrix = _without(matrix, best + 1)
            rank, result = _without(rank, best), _without(result, best)
            # Only the two pairs with the new symbol have changed.
            for position, inside in ((best - 1, best > 0), (best, best < rank.shape[1])):
                row, column = row_index[inside], position[inside]
                rank[row, column], result[row, column] = self._look_up(
                    matrix[row, column], matrix[row, column + 1]
                )

    def _look_up(self, left: Numbers, right: Numbers) -> tuple[NDArray[np.int32], Numbers]:
        """The rank of the merge of two symbols, or _NEVER, and the result."""
        if not len(self._pairs):
            return np.full(left.shape, _NEVER, np.int32), left
        pair = left * self._size + right
        index = np.minimum(np.searchsorted(self._pairs, pair), len(self._pairs) - 1)
        return np.where(self._pairs[index] == pair, self._ranks[index], _NEVER), self._results[index]


def _without(matrix: NDArray, column: Numbers) -> NDArray:
    """Each row without its element at `column`."""
    places = np.arange(matrix.shape[1] - 1)
    return np.take_along_axis(matrix, places + (places >= column[:, None]), 1)


def _hashes(tokens: Numbers, words: Numbers) -> NDArray[np.uint64]:
    """A 64-bit hash of each word's tokens and positions (splitmix64).

    In a corpus with a million word types the probability of a collision is about 10⁻⁷.
    """
    if not len(words):
        return np.empty(0, np.uint64)
    starts = np.cumsum(words) - words
    place = np.arange(len(tokens)) - np.repeat(starts, words)
    x = (tokens + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x += place.astype(np.uint64) * np.uint64(0xD1342543DE82EF95)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.add.reduceat(x ^ (x >> np.uint64(31)), starts)
