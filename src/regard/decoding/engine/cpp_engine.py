"""The native engine as a writer: encode, start, step, best, and what it carries between steps.

All that lasts is held here in tensors and arrays; `engine.cpp` computes and keeps nothing but the packed weights. So any
number of searches may use one engine at once, each in its own thread.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import arguments
from regard.attention.kernels.build_cpp import check_code, lacks, library
from regard.decoding.engine.layout import ACTIVATIONS, Unsupported, epsilon, positions, shape, tensors
from regard.decoding.engine.shared_shortlists import SharedShortlists
from regard.decoding.engine.shortlist import Shortlist
from regard.errors import OptionError

_SOURCE = Path(__file__).with_name("engine.cpp")
KINDS = {"float32": 0, "int8": 1, "bfloat16": 2}
PRECISIONS = ("auto", *KINDS)
FIRST = 256  # positions known at first
_OLD = threading.local()
_REPORTED: set[str] = set()  # reasons for the slow path that were printed, each once


def why_not(model: Any, precision: str = "float32") -> str | None:
    """None when the engine computes this model in this precision here, otherwise why not."""
    try:
        shape(model)
    except Unsupported as reason:
        return str(reason)
    if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in model.parameters()):
        return "the weights are not float32 on the CPU"
    return _why_not_here(precision)


def _why_not_here(precision: str) -> str | None:
    """What this machine lacks for the engine, or None."""
    if lacks("avx512f", "avx512bw", "avx512vl", "avx512dq"):
        return "this processor has no AVX-512"
    loaded = library(_SOURCE)
    if isinstance(loaded, str):
        return loaded
    if not loaded.engine_kinds() & (1 << KINDS[precision]):
        return f"this processor has no instructions for {precision}"
    return None


def fast(model: Any, precision: str = "auto", shortlist: Shortlist | None = None) -> Any:
    """The fastest writer there is for a model: the engine where it can, else the model itself. auto is float32.

    With a `shortlist` it writes listed words only, which the engine alone can do.
    """
    arguments.one_of("precision", precision, PRECISIONS)
    if not hasattr(model, "start") or not hasattr(model, "device"):
        raise OptionError(f"fast takes a translator or a language model, got {arguments.quoted(model)}")
    if model.device.type == "cuda":
        if shortlist is not None:
            raise OptionError(
                "a shortlist is for the engine on a CPU, and this model is on a GPU; choose the CPU, or leave it out"
            )
        from regard.decoding.engine.cuda import on_cuda

        return on_cuda(model, precision)
    wanted = "float32" if precision == "auto" else precision
    reason = why_not(model, wanted)
    if reason is None:
        return Engine(model, wanted, shortlist)
    if wanted != "float32" and why_not(model) is None:
        print(f"regard: float32 instead of {wanted}, by the C++ engine: {reason}", file=sys.stderr)
        return Engine(model, "float32", shortlist)
    if shortlist is not None:
        raise OptionError(
            f"a shortlist needs the engine, which does not compute this model: {reason}; leave it out"
        )
    if wanted != "float32":
        print(f"regard: float32 instead of {wanted}, by PyTorch: {reason}", file=sys.stderr)
    elif reason == _why_not_here(wanted) and reason not in _REPORTED:  # the machine's fault, not the model's
        _REPORTED.add(reason)
        print(
            f"regard: decoding with PyTorch, which is slower than the C++ engine: {reason}", file=sys.stderr
        )
    return model


class Memory:
    """The keys and values of some sentences, for all layers of the decoder; with a shortlist, what each may be translated by."""

    def __init__(self, buffer: Tensor, address: Any, lengths: Any, allowed: list[Any] | None = None) -> None:
        self.buffer, self.address, self.lengths, self.allowed = buffer, address, lengths, allowed

    def allow(self, words: Sequence[Collection[int]]) -> None:
        """Words that must be possible, for each sentence; to be said before it starts."""
        if self.allowed is not None:
            both = zip(self.allowed, words, strict=True)
            self.allowed = [
                np.union1d(listed, np.array([*more], np.int32)) if more else listed for listed, more in both
            ]


class Slots:
    """Keys and values that were written, a slot for each row and step. When full, those nobody looks back to are dropped."""

    def __init__(self, size: int, rows: int, dtype: torch.dtype) -> None:
        old = getattr(
            _OLD, "buffer", None
        )  # of this thread's last search: fresh memory costs more than what is done with it
        if old is None or old.dtype != dtype or old.shape[1] != size or len(old) < 16 * rows:
            old = torch.empty(max(256, 32 * rows), size, dtype=dtype)
        self.buffer: Tensor = old
        self.used, _OLD.buffer = 0, None

    def __del__(self) -> None:
        _OLD.buffer = self.buffer

    def take(self, rows: int, carried: DecoderState) -> int:
        """Room for so many more; gives the first."""
        if self.used + rows > len(self.buffer):
            self._tidy(rows, carried)
        self.used += rows
        return self.used - rows

    def _tidy(self, rows: int, carried: DecoderState) -> None:
        width = carried.past.shape[1]
        live = np.arange(width) < carried.at[:, None]
        kept, places = np.unique(carried.past[live], return_inverse=True)
        size = len(self.buffer)
        while size < 2 * (len(kept) + rows):
            size *= 2
        wide = torch.empty(size, self.buffer.shape[1], dtype=self.buffer.dtype)
        torch.index_select(self.buffer, 0, torch.from_numpy(kept.astype(np.int64)), out=wide[: len(kept)])
        self.buffer, self.used = wide, len(kept)
        carried.past[live] = places


class DecoderState:
    """What the search carries: for each row its sentence's memory, how much it has written, and the slots of that."""

    def __init__(
        self,
        memories: list[Memory],
        listed: SharedShortlists | None,
        address: Any,
        lengths: Any,
        at: Any,
        past: Any,
        slots: Slots,
    ) -> None:
        self.memories, self.listed, self.address, self.lengths = memories, listed, address, lengths
        self.at, self.past, self.slots = at, past, slots

    def reorder(self, rows: Tensor) -> DecoderState:
        """Keep these rows, in this order. Vectors stay where they are."""
        pick = rows.numpy()
        listed = self.listed and self.listed.reorder(pick)
        found = DecoderState(
            self.memories, listed, self.address[pick], self.lengths[pick], self.at[pick], self.past[pick], self.slots
        )  # fmt: skip
        if len(self.memories) > 8:  # now and then: forget sentences that have left
            found.memories = [m for m in self.memories if np.isin(m.address, found.address).any()]
        return found

    def join(self, other: DecoderState) -> DecoderState:
        """These rows, then newly started ones."""
        assert not other.at.any()
        past = np.zeros((len(other.at), self.past.shape[1]), np.int32)
        both = (
            (self.address, other.address),
            (self.lengths, other.lengths),
            (self.at, other.at),
            (self.past, past),
        )
        listed = self.listed and other.listed and self.listed.join(other.listed)
        return DecoderState(self.memories + other.memories, listed, *map(np.concatenate, both), self.slots)  # type: ignore[arg-type]


class Engine:
    """A Transformer translator or language model, computed natively; equal to its torch model but for rounding."""

    joins = True
    device = torch.device("cpu")
    training = False

    def __init__(self, model: Any, precision: str = "float32", shortlist: Shortlist | None = None) -> None:
        loaded = library(_SOURCE)
        assert not isinstance(loaded, str)
        made = shape(model)
        self.model, self.precision, self._library, self._shape = model, precision, loaded, made
        for name in ("source_tokenizer", "target_tokenizer", "config", "card"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))
        layers = len(model.encoder.layers) if hasattr(model, "encoder") else 0, len(model.decoder.layers)
        crossed, last = hasattr(model, "encoder"), made.norm if made.place == "pre" else 0
        self.vocab = model.output.projection.out_features
        if crossed:  # a language model has nothing to encode, and searches ask by this name
            self.encode = self._encode
        self._kept_as = torch.float32 if precision == "float32" else torch.bfloat16  # keys and values
        self._slot = layers[1] * 2 * made.heads * made.width
        numbers = [
            made.dim, made.heads, made.width, made.inner, self.vocab, 0, ACTIVATIONS[made.activation],
            made.place == "pre", crossed, KINDS[precision], *layers, made.norm, last, last,
        ]  # fmt: skip
        # Word vectors and norms are read where they are, so they are kept; maps are packed.
        self._kept = [None if t is None else t.detach().contiguous() for t in tensors(model, made)]
        pointers = (ctypes.c_void_p * len(self._kept))(
            *(None if t is None else t.data_ptr() for t in self._kept)
        )
        loaded.engine_room.restype = ctypes.c_int64
        eps = epsilon(model.decoder.layers[0].around_attention.norm)
        made_numbers = (ctypes.c_int64 * len(numbers))(*map(int, numbers))
        self._native = ctypes.c_void_p()
        scales = ctypes.c_double(model.target.scale), ctypes.c_double(eps)
        _check(loaded.engine_new(made_numbers, *scales, pointers, ctypes.byref(self._native)))
        self.shortlist = shortlist
        if shortlist is not None:
            shortlist.check(model)
            _check(loaded.engine_list(self._native, _of(self._kept[-2])))
        self._lock, self._known, self._tables = threading.Lock(), 0, []
        self._reach(FIRST)

    def __del__(self) -> None:
        if getattr(self, "_native", None):
            self._library.engine_free(self._native)

    def _reach(self, length: int) -> None:
        """Know the positions up to a length. Older tables stay, since another thread may be reading them."""
        with self._lock:
            while self._known < length:
                self._known = max(FIRST, 2 * self._known)
                parts = (getattr(self.model, "encoder", None), self.model.decoder)
                tables = [
                    None if part is None else positions(part, self._shape.dim, self._known) for part in parts
                ]
                self._tables.append(tables)
                self._library.engine_positions(
                    self._native, *(None if t is None else ctypes.c_void_p(t.data_ptr()) for t in tables)
                )

    def _share(self) -> None:
        """A second core takes half of each product where torch may use one: workers side by side have set that to one thread."""
        self._library.engine_share(int(torch.get_num_threads() > 1))

    @torch.inference_mode()
    def _encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Sentences (batch, S) → memory; padding is cut off first."""
        self._share()
        sizes = lengths.numpy().astype(np.int32)
        self._reach(int(sizes.max(initial=0)))
        real = np.arange(source.shape[1]) < sizes[:, None]
        words, at = (
            np.ascontiguousarray(source.numpy()[real]),
            np.broadcast_to(np.arange(source.shape[1], dtype=np.int32), real.shape)[real],
        )
        rooms = np.array(
            [self._library.engine_room(self._native, ctypes.c_int64(int(n))) for n in sizes], np.int64
        )
        buffer = torch.empty(int(rooms.sum()), dtype=self._kept_as)
        address = buffer.data_ptr() + buffer.element_size() * (np.cumsum(rooms) - rooms)
        at = np.ascontiguousarray(at)
        _check(
            self._library.engine_encode(
                self._native, ctypes.c_int64(len(sizes)), _at(sizes), _at(words), _at(at), _at(address)
            )
        )
        allowed = (
            None if self.shortlist is None else self.shortlist.words(np.split(words, np.cumsum(sizes)[:-1]))
        )
        return Memory(buffer, address, sizes, allowed)

    def start(self, memory: Memory | None, first: Tensor) -> DecoderState:
        self._share()
        rows = len(first)
        none = np.zeros(rows, np.int64), np.zeros(rows, np.int32)
        address, lengths = none if memory is None else (memory.address, memory.lengths)
        at, past = np.zeros(rows, np.int32), np.zeros((rows, 32), np.int32)
        listed = (
            None
            if memory is None or memory.allowed is None
            else SharedShortlists.of(memory.allowed, self._choose)
        )
        slots = Slots(self._slot, rows, self._kept_as)
        return DecoderState([] if memory is None else [memory], listed, address, lengths, at, past, slots)

    def _choose(self, words: Any) -> Chosen:
        return Chosen(self, words)

    def best(self, tokens: Tensor, carried: DecoderState, k: int) -> tuple[Tensor, Tensor, DecoderState]:
        """One more word of each row → log p and numbers of the k best next words, (rows, at most k)."""
        rows, k = len(tokens), min(k, self.vocab)
        log_p, words = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
        self._step(tokens, carried, k, log_p, words, None)
        return log_p, words, carried

    def step(self, tokens: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        """One more word of each row → scores of the next, (rows, vocabulary)."""
        scores = torch.empty(len(tokens), self.vocab)
        self._step(tokens, carried, 0, None, None, scores)
        return scores, carried

    def read(self, tokens: Tensor, carried: DecoderState) -> DecoderState:
        """Words that are given, (rows, T): the state behind them."""
        for column in tokens.unbind(1):
            self.best(column.contiguous(), carried, 1)
        return carried

    def _step(
        self,
        tokens: Tensor,
        c: DecoderState,
        k: int,
        log_p: Tensor | None,
        words: Tensor | None,
        scores: Tensor | None,
    ) -> None:
        rows, longest = len(tokens), int(c.at.max(initial=0)) + 1
        self._reach(longest)
        first = c.slots.take(rows, c)
        if longest > c.past.shape[1]:
            c.past = np.pad(c.past, ((0, 0), (0, c.past.shape[1])))
        size, tokens = ctypes.c_int64, tokens.contiguous()
        code = self._library.engine_step(
            self._native, size(rows), _of(tokens), _at(c.at), _at(c.past), size(c.past.shape[1]), _of(c.slots.buffer), size(first),
            _at(c.address), _at(c.lengths), size(k), _of(log_p), _of(words), _of(scores),
            None if c.listed is None else _at(c.listed.rows),
        )  # fmt: skip
        _check(code)
        c.past[np.arange(rows), c.at] = first + np.arange(rows)
        c.at = c.at + 1


class Chosen:
    """The weights of some words of the output, in rising order, as a matrix of their own."""

    def __init__(self, engine: Engine, words: Any) -> None:
        self._engine = engine  # it outlives what is chosen from it
        found = ctypes.c_void_p()
        _check(
            engine._library.engine_choose(
                engine._native, ctypes.c_int64(len(words)), _at(words), ctypes.byref(found)
            )
        )
        self.address: int = found.value or 0

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._engine._library.engine_forget(ctypes.c_void_p(self.address))


def _check(code: int) -> None:
    check_code(code, "the decoding engine")


def _at(array: Any) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def _of(tensor: Tensor | None) -> ctypes.c_void_p | None:
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())
