"""Batches of rows of similar length under a token budget, in a shuffled order that can be resumed anywhere.

The order depends only on the seed and the epoch: the rows are shuffled, sorted by length (rows of equal
length stay shuffled), cut into batches, and the batches are shuffled. A position is therefore two small
numbers, and resuming from it gives the batches that would have followed. Only index arrays are in memory;
tokens are read from disk as batches are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batch import Batch
from regard.data.prepare import Prepared
from regard.data.tokenizer import BOS, PAD
from regard.errors import DataError, OptionError

Numbers = NDArray[np.int64]


class BatchStream(Protocol):
    """The interface of Batches and Windows: endless, reproducible, sharded over ranks, resumable."""

    epoch: int

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def once(self) -> Iterator[Batch]: ...
    def per_epoch(self) -> int: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    @property
    def padding(self) -> float: ...


class BatchIterator:
    """Base class of endless batch iterators.

    A position is the epoch and the number of batches of that epoch which all ranks together have taken.
    """

    def __init__(self, identity: dict[str, Any], rank: int, world: int) -> None:
        if world < 1 or not 0 <= rank < world:
            raise OptionError(f"rank must lie in 0 … world-1, got rank {rank} of world {world}")
        self.rank, self.world, self._identity = rank, world, identity
        self.epoch, self._taken = 0, 0

    def per_epoch(self) -> int:
        """Number of batches of the current epoch over all ranks.

        It includes those of an incomplete last round, which are dropped.
        """
        raise NotImplementedError

    def _build(self, number: int) -> Batch:
        """Make batch `number` of the current epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.per_epoch() < self.world:
            raise DataError(
                f"an epoch has {self.per_epoch()} batches, fewer than the {self.world} processes that share "
                "them; lower batch.tokens or batch.sentences, or use fewer processes"
            )
        if self._taken + self.world > self.per_epoch():
            self.epoch, self._taken = self.epoch + 1, 0
        batch = self._build(self._taken + self.rank)
        self._taken += self.world
        return batch

    def state(self) -> dict[str, Any]:
        """The position after the batches taken so far, for JSON; the same on every rank."""
        return {"epoch": self.epoch, "taken": self._taken, **self._identity}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a position of the same data and options; the number of ranks may differ."""
        for key, current in self._identity.items():
            if state.get(key) != current:
                saved = state.get(key)
                raise DataError(
                    f"this position was saved with {key} {saved!r} and the batches now have {current!r}; "
                    "use the same"
                )
        # With another number of ranks a round may be incomplete: it is skipped rather than repeated.
        self.epoch, self._taken = int(state["epoch"]), -(-int(state["taken"]) // self.world) * self.world


class Batches(BatchIterator):
    """Endless batches of rows of similar length, each with at most `tokens` tokens, padding included.

        batches = Batches(prepared, tokens=4096, seed=1)
        batch = next(batches)

    Args:
        prepared: the dataset.
        tokens: budget of the longer side, B · max(S, T+1) ≤ tokens.
        seed: decides the order, together with the epoch.
        rank: batch i of an epoch belongs to rank i % world; an incomplete last round is dropped.
        world: number of ranks.
        max_sentences: upper bound on the rows of a batch.
        multiple: the budget counts B · max(S, T) rounded up to this, so that batches padded to few shapes
            stay within it.
        shuffle: False gives every epoch the same order, by length.
        count: counts the labels of a batch where they are not all target tokens.

    Epoch e reads variant e % variants of a dataset prepared with BPE-dropout.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        tokens: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        max_sentences: int | None = None,
        multiple: int = 1,
        shuffle: bool = True,
        count: Callable[[Batch], int] | None = None,
    ) -> None:
        for name, value, least in (
            ("batch.tokens", tokens, 2),
            ("batch.sentences", max_sentences, 1),
            ("batch.multiple", multiple, 1),
            ("seed", seed, 0),
        ):
            if value is not None and value < least:
                raise OptionError(f"{name} must be at least {least}, got {value}")
        self.prepared, self.tokens, self.seed, self.max_sentences = prepared, tokens, seed, max_sentences
        self.shuffle, self.count, self.multiple = shuffle, count, multiple
        identity = {"data": prepared.checksum, "tokens": tokens, "seed": seed}
        identity |= {"sentences": max_sentences, "shuffle": shuffle}
        identity |= {} if multiple == 1 else {"multiple": multiple}
        super().__init__(identity, rank, world)
        self._planned = -1
        self._order: NDArray[np.integer] = np.empty(0, np.int64)
        self._edges: Numbers = np.zeros(1, np.int64)
        self._check_budget()

    def per_epoch(self) -> int:
        self._plan()
        return len(self._edges) - 1

    @property
    def padding(self) -> float:
        """The share of PAD in the source and target tensors of the current epoch."""
        self._plan()
        size = tokens = 0
        for lengths, extra in self._sides():
            ordered = lengths[self._order]
            longest = np.maximum.reduceat(ordered, self._edges[:-1]) + extra
            size += int((longest.astype(np.int64) * np.diff(self._edges)).sum())
            tokens += int(ordered.sum(dtype=np.int64)) + extra * len(ordered)
        return 1 - tokens / size

    def once(self) -> Iterator[Batch]:
        """One pass over the current epoch of this rank, nothing dropped; the position does not change."""
        for number in range(self.rank, self.per_epoch(), self.world):
            yield self._build(number)

    @property
    def _variant(self) -> int:
        return self.epoch % self.prepared.variants if self.shuffle else 0

    def _sides(self) -> list[tuple[NDArray[np.integer], int]]:
        """The lengths of each side, and the number of further tokens in a row (BOS, on the target side)."""
        target = (self.prepared.lengths("target", self._variant), 1)
        if not self.prepared.paired:
            return [target]
        return [(self.prepared.lengths("source", self._variant), 0), target]

    def _widths(self) -> NDArray[np.integer]:
        """The length of the longer side of every row, with BOS unless batches are padded to a multiple
        anyway.
        """
        return np.maximum.reduce(
            [lengths + (extra if self.multiple == 1 else 0) for lengths, extra in self._sides()]
        )

    def _rounded(self, widths: NDArray[np.integer]) -> NDArray[np.integer]:
        """Widths as they count against the budget, but never more than all of it."""
        return np.minimum(-(-widths // self.multiple) * self.multiple, self.tokens)

    def _check_budget(self) -> None:
        """Raise a DataError if a row is longer than the budget of a batch."""
        rows = self._usable()
        if not len(rows):
            raise DataError(
                "there are no rows to make batches of; every line of the prepared text is empty or over "
                "max_length"
            )
        for epoch in range(self.prepared.variants):
            self.epoch = epoch
            widths = self._widths()[rows]
            if (widest := int(widths.max())) > self.tokens:
                raise DataError(
                    f"row {rows[widths.argmax()]} has {widest} tokens, more than the {self.tokens} of a "
                    "batch; raise batch.tokens or lower data.max_length"
                )
        self.epoch = 0

    def _plan(self) -> None:
        """Order the rows of the current epoch and cut them into batches."""
        if self._planned == self.epoch or (self._planned >= 0 and not self.shuffle):
            return
        rng = np.random.default_rng([self.seed, self.epoch])
        order = self._usable()
        if self.shuffle:
            rng.shuffle(order)
        order = order[np.argsort(self._sort_keys(order), kind="stable")]
        edges = _cut(self._rounded(self._widths()[order]), self.tokens, self.max_sentences)
        if self.shuffle:
            order, edges = _shuffled(order, edges, rng)
        self._order, self._edges, self._planned = order, edges, self.epoch

    def _usable(self) -> NDArray[np.integer]:
        """The rows to batch: all pairs; of a text the lines that are neither empty nor over max_length."""
        if self.prepared.paired:
            return np.arange(self.prepared.rows, dtype=np.int32 if self.prepared.rows < 2**31 else np.int64)
        lengths, most = self.prepared.lengths("target"), self.prepared.max_length
        return np.flatnonzero((lengths > 1) & (lengths <= (lengths.max() if most is None else most + 1)))

    def _sort_keys(self, rows: NDArray[np.integer]) -> Numbers:
        """Sort keys: the longer side, which counts against the budget, then the difference of the sides.

        The difference ascends for odd widths and descends for even ones, so that a batch with rows of two
        widths has little padding too.
        """
        width = self._widths()[rows].astype(np.int64)
        if not self.prepared.paired:
            return width
        source, target = (lengths[rows].astype(np.int64) for lengths, _ in self._sides())
        return width * (2 * int(width.max()) + 2) + np.where(width % 2 == 1, source - target, target - source)

    def rows_of(self, number: int) -> Numbers:
        """The rows of batch `number` of the current epoch; no tokens are read."""
        self._plan()
        return self._order[self._edges[number] : self._edges[number + 1]].astype(np.int64)

    def _build(self, number: int) -> Batch:
        rows = self.rows_of(number)
        target, target_lengths = _gather(self.prepared, "target", self._variant, rows, 1)
        target[:, 0] = BOS
        batch = Batch(torch.from_numpy(target), torch.from_numpy(target_lengths), torch.from_numpy(rows))
        batch = batch if self.count is None else replace(batch, tokens=self.count(batch))
        if not self.prepared.paired:
            return batch
        source, source_lengths = _gather(self.prepared, "source", self._variant, rows, 0)
        return replace(
            batch,
            source=torch.from_numpy(source),
            source_lengths=torch.from_numpy(source_lengths),
            source_tokens=-1,
        )


def _cut(widths: NDArray[np.integer], tokens: int, most: int | None) -> Numbers:
    """Boundaries of the batches: each takes rows while their number times the largest width is within the
    budget.
    """
    edges, start, rows = [0], 0, len(widths)
    while start < rows:
        room = max(1, tokens // int(widths[start]))
        room = room if most is None else min(room, most)
        size = np.maximum.accumulate(widths[start : start + room].astype(np.int64)) * np.arange(
            1, min(room, rows - start) + 1
        )
        start += int(np.searchsorted(size, tokens, side="right"))
        edges.append(start)
    return np.asarray(edges, np.int64)


def _shuffled(
    order: NDArray[np.integer], edges: Numbers, rng: np.random.Generator
) -> tuple[NDArray[np.integer], Numbers]:
    """The batches in random order, with their rows unchanged."""
    sizes = np.diff(edges)
    permutation = rng.permutation(len(sizes))
    new_edges = np.concatenate(([0], np.cumsum(sizes[permutation])))
    # A row keeps its distance from the start of its batch.
    source = np.arange(len(order)) + np.repeat(edges[:-1][permutation] - new_edges[:-1], sizes[permutation])
    return order[source], new_edges


def _gather(
    prepared: Prepared, side: str, variant: int, rows: Numbers, ahead: int
) -> tuple[Numbers, Numbers]:
    """Rows of one side as a matrix with PAD on the right and `ahead` free columns on the left, and their
    lengths.
    """
    tokens, offsets = prepared.arrays(side, variant)
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    kind = tokens.dtype if tokens.ndim > 1 else np.int64  # frames (time, channels), or token ids
    matrix = np.full((len(rows), ahead + int(lengths.max()), *tokens.shape[1:]), PAD, kind)
    columns = np.arange(matrix.shape[1] - ahead)
    inside = columns < lengths[:, None]
    matrix[:, ahead:][inside] = tokens[(starts[:, None] + columns)[inside]]
    return matrix, lengths
