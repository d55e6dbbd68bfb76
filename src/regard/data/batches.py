"""Batches of similar lengths under a token budget, in a shuffled order that can be stopped and taken up anywhere.

The order is a function of the seed and the epoch alone: the rows are shuffled, sorted by length (rows of equal length stay
shuffled), cut into batches, and the batches are shuffled. A position is therefore two small numbers, and going on from it gives the
batches that would have followed. Only index arrays lie in memory; tokens are read from the disk as batches are built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.arguments import integer, quoted
from regard.data.prepare import Prepared
from regard.data.tokenizer import BOS, PAD
from regard.errors import DataError, OptionError, ShapeError

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, filled up with PAD on the right. `rows` names the batch: row numbers of the prepared set.

    Language models have no source; a window of a stream is a row of `target`, and `rows` holds where each begins.
    """

    target: (
        Tensor  # (B, T+1): BOS y1 … yn EOS; a stream's window begins with the token before it instead of BOS
    )
    target_lengths: Tensor  # (B,): target[b, 1 : 1 + target_lengths[b]] are the labels
    rows: Tensor  # (B,)
    source: Tensor | None = None  # (B, S): x1 … xn EOS
    source_lengths: Tensor | None = None  # (B,)
    continues: bool = (
        False  # row b goes on where row b of the batch before ended, so a recurrent state is carried over
    )
    tokens: int = (
        -1
    )  # labels in all; counted when the batch is made, so that nobody has to wait for a GPU to know it
    source_tokens: int = -1

    def __post_init__(self) -> None:
        self._check()
        if self.tokens < 0:
            object.__setattr__(self, "tokens", int(self.target_lengths.sum()))
        if self.source_tokens < 0:
            object.__setattr__(
                self, "source_tokens", 0 if self.source_lengths is None else int(self.source_lengths.sum())
            )

    def _check(self) -> None:
        for name, axes in (
            ("target", 2),
            ("target_lengths", 1),
            ("rows", 1),
            ("source", 2),
            ("source_lengths", 1),
        ):
            found: Any = getattr(self, name)
            if found is None and name.startswith("source"):
                continue
            if (
                not isinstance(found, Tensor)
                or found.is_floating_point()
                or found.is_complex()
                or found.ndim != axes
                or len(found) != len(self.target)
            ):
                shape = "(batch, time)" if axes == 2 else "(batch,)"
                raise ShapeError(
                    f"{name} of a Batch must be a tensor of whole numbers of shape {shape}, got {quoted(found)}"
                )
        if (self.source is None) != (self.source_lengths is None):
            raise OptionError("a Batch has source and source_lengths or neither; give both")
        for name in ("tokens", "source_tokens"):
            integer(name, getattr(self, name), -1)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""
        return self._each(lambda x: x.to(device, non_blocking=non_blocking))

    def pin(self) -> Batch:
        """The same batch in page-locked memory, from which a GPU copies while it computes."""
        return self._each(lambda x: x.pin_memory())

    def _each(self, change: Any) -> Batch:
        names = ("target", "target_lengths", "rows", "source", "source_lengths")
        return replace(
            self, **{name: change(getattr(self, name)) for name in names if getattr(self, name) is not None}
        )

    def __len__(self) -> int:
        return len(self.rows)


class BatchStream(Protocol):
    """What Batches and Windows have in common: endless, reproducible, sharded over ranks, with a position."""

    epoch: int

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def once(self) -> Iterator[Batch]: ...
    def per_epoch(self) -> int: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    @property
    def padding(self) -> float: ...


class _Stream:
    """The position of a stream: the epoch, and the micro-batches of it that all ranks together have taken."""

    def __init__(self, identity: dict[str, Any], rank: int, world: int) -> None:
        if world < 1 or not 0 <= rank < world:
            raise OptionError(f"rank must lie in 0 … world-1, got rank {rank} of world {world}")
        self.rank, self.world, self._identity = rank, world, identity
        self.epoch, self._taken = 0, 0

    def per_epoch(self) -> int:
        """Micro-batches of the current epoch, all ranks together, with those of the last incomplete round that are dropped."""
        raise NotImplementedError

    def _build(self, number: int) -> Batch:
        """Micro-batch `number` of the current epoch."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.per_epoch() < self.world:
            raise DataError(
                f"an epoch has {self.per_epoch()} batches, fewer than the {self.world} processes that share them; "
                "lower batch.tokens or batch.sentences, or use fewer processes"
            )
        if self._taken + self.world > self.per_epoch():
            self.epoch, self._taken = self.epoch + 1, 0
        batch = self._build(self._taken + self.rank)
        self._taken += self.world
        return batch

    def state(self) -> dict[str, Any]:
        """The position after the batches taken so far, small enough for JSON, the same on every rank."""
        return {"epoch": self.epoch, "taken": self._taken, **self._identity}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position. The data and settings must be those it was taken from; the number of ranks may differ."""
        for key, mine in self._identity.items():
            if state.get(key) != mine:
                saved = state.get(key)
                raise DataError(
                    f"this position was saved with {key} {saved!r} and the batches now have {mine!r}; use the same"
                )
        # With another number of ranks a round may have been begun: it is finished rather than repeated.
        self.epoch, self._taken = int(state["epoch"]), -(-int(state["taken"]) // self.world) * self.world


class Batches(_Stream):
    """An endless stream of batches over the rows of a prepared set, each with at most `tokens` tokens, padding included.

    The budget holds for the larger side: B · max(S, T+1) ≤ tokens; with a `multiple`, B · max(S, T) rounded up to that, so that
    batches come in few shapes and those padded to them are still within the budget. Micro-batch i of an epoch goes to rank
    i % world, and an incomplete last round is dropped, so that all ranks get equally many. `shuffle=False` gives every epoch the
    same order, by length. Epoch e reads variant e % variants of a set prepared with BPE-dropout. `count` says what a batch's
    labels are where they are not all tokens of the target.
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
            ("batch.tokens", tokens, 2), ("batch.sentences", max_sentences, 1), ("batch.multiple", multiple, 1), ("seed", seed, 0)
        ):  # fmt: skip
            if value is not None and value < least:
                raise OptionError(f"{name} must be at least {least}, got {value}")
        self.prepared, self.tokens, self.seed, self.max_sentences, self.shuffle = (
            prepared,
            tokens,
            seed,
            max_sentences,
            shuffle,
        )
        self.count, self.multiple = count, multiple
        identity = {
            "data": prepared.checksum, "tokens": tokens, "seed": seed, "sentences": max_sentences, "shuffle": shuffle,
            **({} if multiple == 1 else {"multiple": multiple}),
        }  # fmt: skip
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
        """The share of the current epoch's source and target places that hold PAD."""
        self._plan()
        places = real = 0
        for lengths, extra in self._sides():
            ordered = lengths[self._order]
            longest = np.maximum.reduceat(ordered, self._edges[:-1]) + extra
            places += int((longest.astype(np.int64) * np.diff(self._edges)).sum())
            real += int(ordered.sum(dtype=np.int64)) + extra * len(ordered)
        return 1 - real / places

    def once(self) -> Iterator[Batch]:
        """All batches of the current epoch of this rank, from its start, none dropped; the position does not move."""
        for number in range(self.rank, self.per_epoch(), self.world):
            yield self._build(number)

    @property
    def _variant(self) -> int:
        return self.epoch % self.prepared.variants if self.shuffle else 0

    def _sides(self) -> list[tuple[NDArray[np.integer], int]]:
        """The lengths of each side, and how many places a row has beyond them (BOS, on the target side)."""
        target = (self.prepared.lengths("target", self._variant), 1)
        return (
            [target]
            if not self.prepared.paired
            else [(self.prepared.lengths("source", self._variant), 0), target]
        )

    def _widths(self) -> NDArray[np.integer]:
        """The wider side of every row, BOS counted unless batches are padded to a multiple anyway."""
        return np.maximum.reduce(
            [lengths + (extra if self.multiple == 1 else 0) for lengths, extra in self._sides()]
        )

    def _rounded(self, widths: NDArray[np.integer]) -> NDArray[np.integer]:
        """Widths as they count against the budget; one that would not fit when rounded counts as the budget."""
        return np.minimum(-(-widths // self.multiple) * self.multiple, self.tokens)

    def _check_budget(self) -> None:
        """Every row of every variant must fit into a batch by itself."""
        rows = self._usable()
        if not len(rows):
            raise DataError(
                "there are no rows to make batches of; every line of the prepared text is empty or over max_length"
            )
        for epoch in range(self.prepared.variants):
            self.epoch = epoch
            widths = self._widths()[rows]
            if (widest := int(widths.max())) > self.tokens:
                raise DataError(
                    f"row {rows[widths.argmax()]} has {widest} tokens, more than the {self.tokens} of a batch; "
                    "raise batch.tokens or lower data.max_length"
                )
        self.epoch = 0

    def _plan(self) -> None:
        """Order the rows of the current epoch and cut them into batches."""
        if self._planned == self.epoch or (self._planned >= 0 and not self.shuffle):
            return
        draw = np.random.default_rng([self.seed, self.epoch])
        order = self._usable()
        if self.shuffle:
            draw.shuffle(order)
        order = order[np.argsort(self._sorting(order), kind="stable")]
        edges = _cut(self._rounded(self._widths()[order]), self.tokens, self.max_sentences)
        if self.shuffle:
            order, edges = _shuffled(order, edges, draw)
        self._order, self._edges, self._planned = order, edges, self.epoch

    def _usable(self) -> NDArray[np.integer]:
        """All rows of pairs; of a text its lines, without the empty ones and those over max_length."""
        if self.prepared.paired:
            return np.arange(self.prepared.rows, dtype=np.int32 if self.prepared.rows < 2**31 else np.int64)
        lengths, most = self.prepared.lengths("target"), self.prepared.max_length
        return np.flatnonzero((lengths > 1) & (lengths <= (lengths.max() if most is None else most + 1)))

    def _sorting(self, rows: NDArray[np.integer]) -> Numbers:
        """What rows are sorted by: the wider side, which counts against the budget, then how far the sides differ.

        The difference goes upwards and downwards in turn, so that a batch across two widths has little padding too.
        """
        width = self._widths()[rows].astype(np.int64)
        if not self.prepared.paired:
            return width
        source, target = (lengths[rows].astype(np.int64) for lengths, _ in self._sides())
        return width * (2 * int(width.max()) + 2) + np.where(width % 2 == 1, source - target, target - source)

    def _build(self, number: int) -> Batch:
        self._plan()
        rows = self._order[self._edges[number] : self._edges[number + 1]].astype(np.int64)
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
    """Edges of the batches: each takes the next rows as long as their number times the widest stays within the budget."""
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
    order: NDArray[np.integer], edges: Numbers, draw: np.random.Generator
) -> tuple[NDArray[np.integer], Numbers]:
    """The batches in random order, their rows together as they were."""
    sizes = np.diff(edges)
    turn = draw.permutation(len(sizes))
    new = np.concatenate(([0], np.cumsum(sizes[turn])))
    # Row j of the new order lies as far behind its batch's new start as it lay behind the old one.
    source = np.arange(len(order)) + np.repeat(edges[:-1][turn] - new[:-1], sizes[turn])
    return order[source], new


def _gather(
    prepared: Prepared, side: str, variant: int, rows: Numbers, ahead: int
) -> tuple[Numbers, Numbers]:
    """Rows of one side as a matrix with PAD on the right and `ahead` free places on the left, and their lengths."""
    tokens, offsets = prepared.arrays(side, variant)
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    matrix = np.full((len(rows), ahead + int(lengths.max())), PAD, np.int64)
    places = np.arange(matrix.shape[1] - ahead)
    real = places < lengths[:, None]
    matrix[:, ahead:][real] = tokens[(starts[:, None] + places)[real]]
    return matrix, lengths


class Windows(_Stream):
    """Windows of `length` labels over the tokens of a set read as one text, `sentences` of them a batch; for language models.

    - "stream": the text is cut into sentences · world parts of equal length (give or take one); row b reads the b-th part from
      left to right, window after window, and `continues` says that a window follows the one before. Every token is a label once.
    - "crops": each window begins at a random place. An epoch is as many batches as hold the text once.

    `shuffle=False` draws the crops of epoch 0 again in every epoch; a stream is the same in every epoch anyway.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        length: int,
        sentences: int,
        seed: int,
        mode: str = "stream",
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
    ) -> None:
        if mode not in ("stream", "crops"):
            raise OptionError(f"the mode of windows is stream or crops, got {mode!r}")
        for name, value, least in (
            ("batch.length", length, 2),
            ("batch.sentences", sentences, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise OptionError(f"{name} must be at least {least}, got {value}")
        self.prepared, self.length, self.sentences, self.seed, self.mode = (
            prepared,
            length,
            sentences,
            seed,
            mode,
        )
        self.shuffle = shuffle
        # In a stream the ranks share each round, so a position belongs to one number of them.
        shared = {"world": world} if mode == "stream" else {}
        identity = {
            "data": prepared.checksum,
            "length": length,
            "sentences": sentences,
            "seed": seed,
            "mode": mode,
            **shared,
        }
        super().__init__(identity, rank, world)
        needed = sentences * world if mode == "stream" else length
        if self._total < needed:
            raise DataError(
                f"the text has {self._total} tokens, fewer than the {needed} that its windows need; "
                "lower batch.length or batch.sentences, or give more text"
            )

    @property
    def _total(self) -> int:
        return len(self.prepared.arrays("target", self._variant)[0])

    @property
    def _variant(self) -> int:
        return self.epoch % self.prepared.variants if self.shuffle else 0

    def per_epoch(self) -> int:
        if self.mode == "crops":
            return max(self.world, self._total // (self.length * self.sentences))
        longest = -(-self._total // (self.sentences * self.world))
        return -(-longest // self.length) * self.world

    @property
    def padding(self) -> float:
        """The share of places that hold PAD: none in crops, at most one a row in the last window of a stream."""
        if self.mode == "crops":
            return 0.0
        places = sum(batch.target.numel() - len(batch) for batch in self._last_round())
        short = places - sum(batch.tokens for batch in self._last_round())
        return short / (self._total + short)

    def once(self) -> Iterator[Batch]:
        """All batches of the current epoch of this rank, from its start; the position does not move."""
        for number in range(self.rank, self.per_epoch(), self.world):
            yield self._build(number)

    def _last_round(self) -> list[Batch]:
        count = self.per_epoch()
        return [self._build(number) for number in range(count - self.world, count)]

    def _build(self, number: int) -> Batch:
        tokens = self.prepared.arrays("target", self._variant)[0]
        if self.mode == "crops":
            draw = np.random.default_rng([self.seed, self.epoch if self.shuffle else 0, number])
            starts = draw.integers(0, len(tokens) - self.length + 1, self.sentences)
            ends = starts + self.length
        else:
            turn, rank = divmod(number, self.world)
            parts = self.sentences * self.world
            part = np.arange(rank * self.sentences, (rank + 1) * self.sentences)
            first, stops = part * len(tokens) // parts, (part + 1) * len(tokens) // parts
            # No window reaches the end of the shortest part but the last one, which thus has something to say in every row.
            most = len(tokens) // parts - 1
            starts = first + min(turn * self.length, most)
            ends = (
                stops
                if number + self.world >= self.per_epoch()
                else first + min((turn + 1) * self.length, most)
            )
        return self._windows(tokens, starts, ends, continues=self.mode == "stream" and number >= self.world)

    def _windows(self, tokens: NDArray[np.integer], starts: Numbers, ends: Numbers, continues: bool) -> Batch:
        """Labels starts … ends, each row behind the token that comes before it in the text (BOS before the first of all)."""
        lengths = ends - starts
        places = starts[:, None] - 1 + np.arange(int(lengths.max()) + 1)  # (B, T+1)
        target = tokens[places.clip(0, len(tokens) - 1)].astype(np.int64)
        target[places < 0] = BOS
        target[places >= ends[:, None]] = PAD
        rows, sizes = torch.from_numpy(starts.astype(np.int64)), torch.from_numpy(lengths.astype(np.int64))
        return Batch(torch.from_numpy(target), sizes, rows, continues=continues)
