"""Learn a shortlist with IBM Model 1 (Brown et al. 1993), two iterations of EM.

The first iteration starts from equal probabilities: c₁(e, f) = Σ over sentence pairs of n_e n_f / S, with S
the length of the source, and t₁(f|e) = c₁(e, f) / Σ_f c₁(e, f). The second distributes each target token by
t₁ over the source tokens of its sentence; the expected counts c₂(e, ·) rank the translations of e. The
end-of-sentence token of the source is the null word. More iterations do not improve the lists (on Multi30k as
many tokens are missing after two as after five).

The distribution of a target token needs only the counts of that token, so target tokens are processed in
blocks whose tables fit into memory, and texts are read in chunks. Memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.prepare import Prepared
from regard.data.tokenizer import EOS, UNK
from regard.decoding.engine.shortlist import Shortlist
from regard.errors import DataError
from regard.files.progress import track

CELLS = 1 << 25  # of each of the two tables, 4 bytes each
PAIRS = 1 << 20  # pairs of source and target tokens at a time
TokenIds = NDArray[np.int64]


def associate(prepared: Prepared, source: Any, target: Any, best: int = 60, frequent: int = 200) -> Shortlist:
    """Learn the shortlist of two tokenizers from encoded pairs."""
    sizes = len(source), len(target)
    width = max(1, CELLS // sizes[0])
    blocks = [(start, min(start + width, sizes[1])) for start in range(0, sizes[1], width)]
    scores, tokens = np.zeros((sizes[0], best), np.float32), np.full((sizes[0], best), EOS, np.int32)
    with track(prepared.rows * (1 + 2 * len(blocks)), "learning the shortlist", "rows") as bar:
        frequencies, totals = _first_iteration(prepared, sizes, bar)
        top = np.argsort(-frequencies, kind="stable")[:frequent]
        top = top[frequencies[top] > 0]
        always_allowed = np.union1d(top, [UNK, EOS])  # allowed for every sentence, so not listed
        for start, stop in blocks:
            counts = _counts(prepared, (sizes[0], start, stop), totals, bar)
            counts[:, always_allowed[(always_allowed >= start) & (always_allowed < stop)] - start] = 0
            _merge(scores, tokens, counts, start)
    tokens[scores == 0] = EOS
    return Shortlist(tokens, top.astype(np.int32), source.fingerprint, target.fingerprint, sizes[1])


class PairChunk:
    """Some sentence pairs: concatenated source and target tokens, and their lengths."""

    def __init__(self, prepared: Prepared, start: int, stop: int) -> None:
        sides = []
        for side in ("source", "target"):
            tokens, offsets = prepared.arrays(side)
            sides += [
                tokens[offsets[start] : offsets[stop]].astype(np.int64),
                np.diff(offsets[start : stop + 1]),
            ]
        self.source, self.source_lengths, self.target, self.target_lengths = sides

    def pairs(self, start: int, stop: int) -> tuple[TokenIds, TokenIds, TokenIds]:
        """Return all pairs of the target tokens start … stop − 1 with the source tokens of their sentence.

        These are the source tokens, the target tokens minus `start`, and the number of pairs of each target
        token.
        """
        pick = np.flatnonzero((self.target >= start) & (self.target < stop))
        row = np.repeat(np.arange(len(self.target_lengths)), self.target_lengths)[pick]
        count = self.source_lengths[row]
        first = (np.cumsum(self.source_lengths) - self.source_lengths)[row]
        place = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
        return self.source[place], np.repeat(self.target[pick] - start, count), count


def chunks(prepared: Prepared) -> Iterator[PairChunk]:
    """Yield all rows in order, about `PAIRS` pairs of tokens at a time."""
    cost = np.cumsum(prepared.source_lengths.astype(np.int64) * prepared.target_lengths)
    start = 0
    while start < prepared.rows:
        done = cost[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(cost, done + PAIRS, "right")))
        if cost[stop - 1] - done > 64 * PAIRS:
            raise DataError(
                f"row {start + 1:,} is too long for a pair of sentences; prepare the data with a max_length"
            )
        yield PairChunk(prepared, start, stop)
        start = stop


def _first_iteration(
    prepared: Prepared, sizes: tuple[int, int], bar: Any
) -> tuple[TokenIds, NDArray[np.float32]]:
    """Return the frequency of each target token, and Σ_f c₁(e, f) of each source token."""
    frequencies, totals = np.zeros(sizes[1], np.int64), np.zeros(sizes[0])
    for chunk in chunks(prepared):
        frequencies += np.bincount(chunk.target, minlength=sizes[1])
        shares = np.repeat(chunk.target_lengths / chunk.source_lengths, chunk.source_lengths)
        totals += np.bincount(chunk.source, shares, minlength=sizes[0])
        bar.advance(len(chunk.source_lengths))
    return frequencies, totals.clip(1e-9).astype(np.float32)


def _counts(
    prepared: Prepared, block: tuple[int, int, int], totals: NDArray[np.float32], bar: Any
) -> NDArray[np.float32]:
    """Return c₂ (source vocabulary, block of target tokens)."""
    rows, start, stop = block
    t, expected = (np.zeros((rows, stop - start), np.float32) for _ in range(2))
    for second in (False, True):
        for chunk in chunks(prepared):
            source, target, count = chunk.pairs(start, stop)
            cell = source * (stop - start) + target
            if second and len(cell):
                share = t.reshape(-1)[cell]
                share /= np.repeat(np.add.reduceat(share, np.cumsum(count) - count), count)
                np.add.at(expected.reshape(-1), cell, share)
            else:
                np.add.at(t.reshape(-1), cell, np.repeat(1 / count.astype(np.float32), count))
            bar.advance(len(chunk.source_lengths))
        if not second:
            t /= totals[:, None]
    return expected


def _merge(
    scores: NDArray[np.float32], tokens: NDArray[np.int32], counts: NDArray[np.float32], start: int
) -> None:
    """Merge the best of a block into `scores` and `tokens`, some source tokens at a time."""
    best = scores.shape[1]
    for row in range(0, len(scores), 512):
        rows = slice(row, row + 512)
        block = np.concatenate([scores[rows], counts[rows]], 1)
        ids = np.concatenate(
            [
                tokens[rows],
                np.broadcast_to(
                    np.arange(start, start + counts.shape[1], dtype=np.int32), counts[rows].shape
                ),
            ],
            1,
        )
        top = np.argpartition(-block, min(best, block.shape[1]) - 1, 1)[:, :best]
        scores[rows], tokens[rows] = np.take_along_axis(block, top, 1), np.take_along_axis(ids, top, 1)
