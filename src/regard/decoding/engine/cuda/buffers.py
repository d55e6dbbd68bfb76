"""Preallocated tensors of a batch: CUDA graphs need fixed addresses, and few sizes mean few graphs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.decoding.engine.cuda.cuda_engine import CudaEngine

MULTIPLE = 8  # all sizes are multiples of this, as the kernels prefer


def bucket(n: int) -> int:
    """Round n up to 8, 16, 24, 32, 48, 64, 96, …: few sizes, none more than 1.5 times too large."""
    size = MULTIPLE
    while size < n:
        if size >= 2 * MULTIPLE and 3 * size // 2 >= n:
            return 3 * size // 2
        size *= 2
    return size


class Size(NamedTuple):
    """The size of `Buffers`."""

    sentences: int  # sentences
    width: int  # rows (hypotheses) per sentence
    source: int  # source tokens; 0 for a language model
    length: int  # target tokens


class Buffers:
    """The tensors of a batch, and the CUDA graphs captured on them.

    The rows of a sentence share one key/value cache; at each step, every row writes its own column.
    Reordering a beam does not copy the cache: for each token of a row's hypothesis, `past` holds the row that
    wrote it.
    """

    PER_SENTENCE = (
        "tokens", "past", "score", "last", "ended", "done", "limit", "ended_score", "ended_row", "ended_at",
    )  # fmt: skip

    def __init__(self, engine: CudaEngine, size: Size) -> None:
        layer_shape, layers = engine.layer_shape, len(engine.decoder.layers)
        sentences, width, source, length = self.size = size
        new = lambda *shape, dtype=engine.dtype: torch.zeros(shape, dtype=dtype, device=engine.device)  # noqa: E731
        heads, head_dim = layer_shape.heads, layer_shape.head_dim
        self.cache = new(layers, 2, sentences, heads, length, width, head_dim)  # keys and values
        self.cross = new(layers, 2, sentences, heads, source, head_dim)
        self.source_mask = new(sentences, 1, 1, source, dtype=engine.score_dtype)  # −inf at padding
        self.positions = engine.decoder.positions(length)
        self.position = new(1, dtype=torch.long)  # tokens so far
        self.tokens = new(sentences, width, dtype=torch.long)
        self.past = new(sentences, width, length, dtype=torch.int16)
        self.steps = torch.arange(length, device=engine.device)
        self.slots = torch.arange(width, device=engine.device, dtype=torch.int16)
        # Beam search. `score` is log p of the rows, −inf once the sentence is done; `last` keeps it then.
        self.score, self.last = (new(sentences, width, dtype=torch.float64) for _ in range(2))
        self.ended = new(sentences, dtype=torch.long)  # number of hypotheses that ended with EOS
        self.limit = new(sentences, dtype=torch.long)  # maximum position
        self.done = new(sentences, dtype=torch.bool)
        self.history = new(length, sentences, width, dtype=torch.int32)  # tokens of all steps
        self.parents = new(length, sentences, width, dtype=torch.int16)  # backpointers of all steps
        # Score, row and position of ended hypotheses; the last column is scratch space for the others.
        self.ended_score = new(sentences, 2 * width + 1, dtype=torch.float64)
        self.ended_row, self.ended_at = (new(sentences, 2 * width + 1, dtype=torch.long) for _ in range(2))
        self.graphs: dict[Any, Any] = {}
        self.bytes = sum(x.numel() * x.element_size() for x in vars(self).values() if isinstance(x, Tensor))

    def clear(self) -> None:
        """Zero the tensors: NaN from an earlier batch would survive a multiplication by a weight of 0."""
        for x in (self.cache, self.cross, self.position, self.tokens, self.past):
            x.zero_()
        self.source_mask[..., 1:] = -torch.inf  # an unused row must attend to one token
        self.source_mask[..., :1] = 0

    def load(self, memory: CudaMemory | None) -> None:
        """Copy the cross-attention keys and values of the source sentences."""
        if memory is None:
            return
        rows, length = memory.cross.shape[2], memory.cross.shape[4]
        self.cross[:, :, :rows, :, :length].copy_(memory.cross)
        self.source_mask[:rows, :, :, :length].copy_(memory.source_mask)

    def note_writers(self) -> None:
        """Note in `past` that each row writes the token at `position` itself."""
        writers = self.slots[:, None].expand(len(self.past), -1, 1)
        self.past.index_copy_(2, self.position, writers)

    def copy_from(self, other: Buffers, rows: Tensor, position: int) -> None:
        """Copy the first `position` tokens of sentences `rows` of `other`, which may be these buffers."""
        n, width, source = len(rows), other.size.width, other.size.source
        self.cache[:, :, :n, :, :position, :width].copy_(
            other.cache[:, :, :, :, :position].index_select(2, rows)
        )
        self.cross[:, :, :n, :, :source].copy_(other.cross.index_select(2, rows))
        self.source_mask[:n, :, :, :source].copy_(other.source_mask.index_select(0, rows))
        self.position.fill_(position)

    def start_search(self, first: Tensor, limits: list[int], position: int) -> None:
        """Start a beam search at `position`: row 0 of each sentence gets its first token."""
        n = len(limits)
        self.score.fill_(-torch.inf)[:n, 0] = 0
        self.last.fill_(-torch.inf)
        self.ended.zero_()
        self.done.fill_(True)[:n] = False
        # Non-blocking: the host does not wait for the encoder.
        self.limit[:n].copy_(torch.tensor(limits) + position, non_blocking=True)
        self.tokens[:n, 0] = first
        self.past.zero_()
        self.position.fill_(position)

    def continue_search(self, other: Buffers, rows: Tensor, position: int) -> None:
        """Continue the beam search of sentences `rows` of `other` at `position`."""
        self.copy_from(other, rows, position)
        self.done.fill_(True)
        self.score.fill_(-torch.inf)
        for name in self.PER_SENTENCE:
            getattr(self, name)[: len(rows)].copy_(getattr(other, name).index_select(0, rows))


class BufferPool:
    """Unused buffers, kept with their graphs for reuse; they take at most a third of the GPU memory."""

    def __init__(self, device: torch.device) -> None:
        self._free: list[Buffers] = []
        self._lock = threading.Lock()
        self._max_bytes = (
            torch.cuda.get_device_properties(device).total_memory // 3 if device.type == "cuda" else 0
        )

    def take(self, engine: CudaEngine, sentences: int, width: int, source: int, length: int) -> Buffers:
        """Return cleared buffers of at least this size."""
        size = Size(bucket(sentences), width, bucket(source) if source else 0, bucket(length))
        with self._lock:
            index = next((i for i, buffers in enumerate(self._free) if buffers.size == size), None)
            buffers = None if index is None else self._free.pop(index)
        buffers = buffers or self._new(engine, size)
        buffers.clear()
        return buffers

    def release(self, buffers: Buffers) -> None:
        """Give buffers back; the oldest unused ones are freed if there are too many."""
        with self._lock:
            self._free.append(buffers)
            while self._free and sum(b.bytes for b in self._free) > self._max_bytes:
                self._free.pop(0)

    def _new(self, engine: CudaEngine, size: Size) -> Buffers:
        try:
            return Buffers(engine, size)
        except torch.OutOfMemoryError:  # free the unused buffers and try again
            with self._lock:
                self._free.clear()
            torch.cuda.empty_cache()
            return Buffers(engine, size)


class CudaMemory(NamedTuple):
    """Cross-attention keys and values of all decoder layers, (layers, 2, batch, heads, S, head dim)."""

    cross: Tensor
    source_mask: Tensor  # (batch, 1, 1, S), −inf at padding

    def reorder(self, rows: Tensor) -> CudaMemory:
        return CudaMemory(self.cross.index_select(2, rows), self.source_mask.index_select(0, rows))
