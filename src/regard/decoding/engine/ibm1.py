"""Which target tokens a source token is likely translated by: IBM Model 1 (Brown et al. 1993), two rounds of
EM.

The first round starts from equal probabilities: c₁(e, f) = Σ over pairs of sentences of n_e n_f / S, with S
the source's length, and t₁(f|e) = c₁(e, f) / Σ_f c₁(e, f). The second shares each target token out by t₁
among the source tokens of its sentence; the expected counts c₂(e, ·) rank the translations of e. The end mark
of a source takes part as the word that stands for nothing. More rounds list no better words (measured on
Multi30k: as many of a translation's words are missed after two as after five).

A target token is shared out by what is known of that token alone, so target tokens are done in blocks whose
tables fit into memory; texts are read in chunks from where they are mapped. Memory does not grow with the
corpus.
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

CELLS = 1 << 25  # of a table, 4 bytes each; there are two
PAIRS = 1 << 20  # of source and target words at a time
Words = NDArray[np.int64]


def associate(prepared: Prepared, source: Any, target: Any, best: int = 60, frequent: int = 200) -> Shortlist:
    """The shortlist of two tokenizers, learned from encoded pairs."""
    sizes = len(source), len(target)
    width = max(1, CELLS // sizes[0])
    blocks = [(start, min(start + width, sizes[1])) for start in range(0, sizes[1], width)]
    scores, words = np.zeros((sizes[0], best), np.float32), np.full((sizes[0], best), EOS, np.int32)
    with track(prepared.rows * (1 + 2 * len(blocks)), "associating words", "rows") as bar:
        often, totals = _first(prepared, sizes, bar)
        top = np.argsort(-often, kind="stable")[:frequent]
        top = top[often[top] > 0]
        given = np.union1d(top, [UNK, EOS])  # every sentence may hold these, so nobody lists them
        for start, stop in blocks:
            counts = _counts(prepared, (sizes[0], start, stop), totals, bar)
            counts[:, given[(given >= start) & (given < stop)] - start] = 0
            _merge(scores, words, counts, start)
    words[scores == 0] = EOS
    return Shortlist(words, top.astype(np.int32), source.fingerprint, target.fingerprint, sizes[1])


class Chunk:
    """Some pairs: source and target tokens one after the other, and their lengths."""

    def __init__(self, prepared: Prepared, start: int, stop: int) -> None:
        sides = []
        for side in ("source", "target"):
            tokens, offsets = prepared.arrays(side)
            sides += [
                tokens[offsets[start] : offsets[stop]].astype(np.int64),
                np.diff(offsets[start : stop + 1]),
            ]
        self.source, self.source_lengths, self.target, self.target_lengths = sides

    def pairs(self, start: int, stop: int) -> tuple[Words, Words, Words]:
        """All pairs of the target tokens start … stop − 1 with every source token of their sentence: the
        source tokens, the target tokens less `start`, and for each target token how many pairs it is in.
        """
        pick = np.flatnonzero((self.target >= start) & (self.target < stop))
        row = np.repeat(np.arange(len(self.target_lengths)), self.target_lengths)[pick]
        count = self.source_lengths[row]
        first = (np.cumsum(self.source_lengths) - self.source_lengths)[row]
        place = np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)
        return self.source[place], np.repeat(self.target[pick] - start, count), count


def chunks(prepared: Prepared) -> Iterator[Chunk]:
    """All rows in order, about `PAIRS` pairs of words at a time."""
    cost = np.cumsum(prepared.source_lengths.astype(np.int64) * prepared.target_lengths)
    start = 0
    while start < prepared.rows:
        done = cost[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(cost, done + PAIRS, "right")))
        if cost[stop - 1] - done > 64 * PAIRS:
            raise DataError(
                f"row {start + 1:,} is far too long for a pair of sentences; prepare the text with a max_length"
            )
        yield Chunk(prepared, start, stop)
        start = stop


def _first(prepared: Prepared, sizes: tuple[int, int], bar: Any) -> tuple[Words, NDArray[np.float32]]:
    """How often each target token occurs, and Σ_f c₁(e, f) for each source token."""
    often, totals = np.zeros(sizes[1], np.int64), np.zeros(sizes[0])
    for chunk in chunks(prepared):
        often += np.bincount(chunk.target, minlength=sizes[1])
        each = np.repeat(chunk.target_lengths / chunk.source_lengths, chunk.source_lengths)
        totals += np.bincount(chunk.source, each, minlength=sizes[0])
        bar.advance(len(chunk.source_lengths))
    return often, totals.clip(1e-9).astype(np.float32)


def _counts(
    prepared: Prepared, block: tuple[int, int, int], totals: NDArray[np.float32], bar: Any
) -> NDArray[np.float32]:
    """c₂ (source vocabulary, block of the target's)."""
    rows, start, stop = block
    t, found = (np.zeros((rows, stop - start), np.float32) for _ in range(2))
    for second in (False, True):
        for chunk in chunks(prepared):
            source, target, count = chunk.pairs(start, stop)
            cell = source * (stop - start) + target
            if second and len(cell):
                share = t.reshape(-1)[cell]
                share /= np.repeat(np.add.reduceat(share, np.cumsum(count) - count), count)
                np.add.at(found.reshape(-1), cell, share)
            else:
                np.add.at(t.reshape(-1), cell, np.repeat(1 / count.astype(np.float32), count))
            bar.advance(len(chunk.source_lengths))
        if not second:
            t /= totals[:, None]
    return found


def _merge(
    scores: NDArray[np.float32], words: NDArray[np.int32], counts: NDArray[np.float32], start: int
) -> None:
    """The best of those known and of a block, in place; a few source tokens at a time."""
    best = scores.shape[1]
    for row in range(0, len(scores), 512):
        here = slice(row, row + 512)
        block = np.concatenate([scores[here], counts[here]], 1)
        names = np.concatenate(
            [
                words[here],
                np.broadcast_to(
                    np.arange(start, start + counts.shape[1], dtype=np.int32), counts[here].shape
                ),
            ],
            1,
        )
        top = np.argpartition(-block, min(best, block.shape[1]) - 1, 1)[:, :best]
        scores[here], words[here] = np.take_along_axis(block, top, 1), np.take_along_axis(names, top, 1)
