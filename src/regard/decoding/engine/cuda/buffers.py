"""What a batch carries from step to step, at fixed addresses of few sizes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.decoding.engine.cuda.cuda_engine import CudaEngine

FEWEST = 8  # sizes start here, and are multiples of it: kernels like that


def bucket(n: int) -> int:
    """n rounded up to 8, 16, 24, 32, 48, 64, 96, …: few sizes, none half again too large."""
    size = FEWEST
    while size < n:
        if size >= 2 * FEWEST and 3 * size // 2 >= n:
            return 3 * size // 2
        size *= 2
    return size


class Size(NamedTuple):
    """Sentences, rows of each, source words, target words."""

    groups: int
    width: int
    source: int
    length: int


class Buffers:
    """What a batch carries from step to step, at fixed addresses, and the steps recorded on it."""

    ROWS = (
        "tokens",
        "past",
        "score",
        "last",
        "ended",
        "done",
        "limit",
        "found_score",
        "found_row",
        "found_at",
    )

    def __init__(self, engine: CudaEngine, size: Size) -> None:
        made, layers = engine.made, len(engine.decoder.layers)
        groups, width, source, length = self.size = size
        new = lambda *shape, dtype=engine.dtype: torch.zeros(shape, dtype=dtype, device=engine.device)  # noqa: E731
        heads = (made.heads, made.width)
        self.cache = new(
            layers, 2, groups, heads[0], length, width, heads[1]
        )  # a row writes to its own place of each step
        self.cross = new(layers, 2, groups, heads[0], source, heads[1])
        self.hidden = new(groups, 1, 1, source, dtype=engine.exact)  # −inf at padding
        self.places = engine.decoder.places(length)
        self.at = new(1, dtype=torch.long)  # words so far
        self.tokens = new(groups, width, dtype=torch.long)
        self.past = new(
            groups, width, length, dtype=torch.int16
        )  # the row that wrote each word of this row's text
        self.steps = torch.arange(length, device=engine.device)
        self.slots = torch.arange(width, device=engine.device, dtype=torch.int16)
        # Of a whole search: log p of rows, what was written by whom, texts that ended.
        self.score, self.last = (new(groups, width, dtype=torch.float64) for _ in range(2))
        self.ended, self.limit = (new(groups, dtype=torch.long) for _ in range(2))
        self.done = new(groups, dtype=torch.bool)
        self.words, self.parents = (
            new(length, groups, width, dtype=torch.int32),
            new(length, groups, width, dtype=torch.int16),
        )
        self.found_score = new(
            groups, 2 * width + 1, dtype=torch.float64
        )  # a last column for what is no text
        self.found_row, self.found_at = (new(groups, 2 * width + 1, dtype=torch.long) for _ in range(2))
        self.recordings: dict[Any, Any] = {}
        self.bytes = sum(x.numel() * x.element_size() for x in vars(self).values() if isinstance(x, Tensor))

    def clear(self) -> None:
        """As new: what a sentence of before left, were it NaN, must not be seen through weights of 0."""
        for x in (self.cache, self.cross, self.at, self.tokens, self.past):
            x.zero_()
        self.hidden[..., 1:] = -torch.inf  # a row that is nobody's sees one word, not none
        self.hidden[..., :1] = 0

    def load(self, memory: Memory | None) -> None:
        """The keys and values of source sentences."""
        if memory is None:
            return
        rows, length = memory.cross.shape[2], memory.cross.shape[4]
        self.cross[:, :, :rows, :, :length].copy_(memory.cross)
        self.hidden[:rows, :, :, :length].copy_(memory.hidden)

    def follow(self, other: Buffers, rows: Tensor, at: int) -> None:
        """Go on where some sentences of another board (or of this one) are after `at` words."""
        n, width, source = len(rows), other.size.width, other.size.source
        self.cache[:, :, :n, :, :at, :width].copy_(other.cache[:, :, :, :, :at].index_select(2, rows))
        self.cross[:, :, :n, :, :source].copy_(other.cross.index_select(2, rows))
        self.hidden[:n, :, :, :source].copy_(other.hidden.index_select(0, rows))
        self.at.fill_(at)

    def begin(self, first: Tensor, limits: list[int], at: int) -> None:
        """A whole search from these first tokens; nobody is in the rows behind them."""
        n = len(limits)
        self.score.fill_(-torch.inf)[:n, 0] = 0
        self.last.fill_(-torch.inf)
        self.ended.zero_()
        self.done.fill_(True)[:n] = False
        self.limit[:n] = torch.tensor(limits, device=self.limit.device) + at
        self.tokens[:n, 0] = first
        self.past.zero_()
        self.at.fill_(at)

    def narrow(self, other: Buffers, rows: Tensor, at: int) -> None:
        """Go on with a whole search, of these sentences alone."""
        self.follow(other, rows, at)
        self.done.fill_(True)
        self.score.fill_(-torch.inf)
        for name in self.ROWS:
            getattr(self, name)[: len(rows)].copy_(getattr(other, name).index_select(0, rows))


class BufferPool:
    """Boards by size; those that nobody uses wait, with their recordings, as long as there is memory for it."""

    def __init__(self, device: torch.device) -> None:
        self._free: list[Buffers] = []
        self._lock = threading.Lock()
        self._most = (
            torch.cuda.get_device_properties(device).total_memory // 3 if device.type == "cuda" else 0
        )

    def take(self, engine: CudaEngine, groups: int, width: int, source: int, length: int) -> Buffers:
        size = Size(bucket(groups), width, bucket(source) if source else 0, bucket(length))
        with self._lock:
            at = next((i for i, board in enumerate(self._free) if board.size == size), None)
            board = None if at is None else self._free.pop(at)
        board = board or self._new(engine, size)
        board.clear()
        return board

    def give(self, board: Buffers) -> None:
        with self._lock:
            self._free.append(board)
            while self._free and sum(b.bytes for b in self._free) > self._most:
                self._free.pop(0)

    def _new(self, engine: CudaEngine, size: Size) -> Buffers:
        try:
            return Buffers(engine, size)
        except torch.OutOfMemoryError:  # what waits can be made again
            with self._lock:
                self._free.clear()
            torch.cuda.empty_cache()
            return Buffers(engine, size)


class Memory(NamedTuple):
    """Keys and values of source sentences for all layers of the decoder, (layers, 2, batch, heads, S, width)."""

    cross: Tensor
    hidden: Tensor  # (batch, 1, 1, S), −inf at padding

    def reorder(self, rows: Tensor) -> Memory:
        return Memory(self.cross.index_select(2, rows), self.hidden.index_select(0, rows))
