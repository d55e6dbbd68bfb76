"""The C++ engine: Transformers on a CPU in float32, bfloat16 or int8, with the interface of a decoder.

All state is held here in tensors and arrays; `engine.cpp` keeps only the packed weights. So several threads
may use one engine at the same time.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import arguments
from regard.attention.intervening import reject_interventions
from regard.attention.kernels.build_cpp import check_code, lacks, library
from regard.decoding.engine.layout import (
    ACTIVATIONS,
    Unsupported,
    epsilon,
    layer_shape,
    model_tensors,
    position_table,
)
from regard.decoding.engine.shared_shortlists import SharedShortlists
from regard.decoding.engine.shortlist import Shortlist
from regard.errors import OptionError

_SOURCE = Path(__file__).with_name("engine.cpp")
KINDS = {"float32": 0, "int8": 1, "bfloat16": 2}
PRECISIONS = ("auto", *KINDS)
FIRST_POSITIONS = 256  # positions computed at first; doubled when more are needed
_reusable = threading.local()  # the slots of this thread's last search
_REPORTED: set[str] = set()  # reasons for the slow path that were printed, each once


class ModelShape(ctypes.Structure):
    """Sizes and kinds of a model, as in engine.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in (
            "dim", "heads", "width", "inner", "vocab", "activation", "pre_norm", "has_encoder", "kind",
            "encoder_layers", "decoder_layers", "norm", "last_norm",
        )),
        ("scale", ctypes.c_double),
        ("eps", ctypes.c_double),
    ]  # fmt: skip


class StepPlan(ctypes.Structure):
    """Inputs and outputs of one decoder step, as in engine.cpp; pointers are addresses."""

    _fields_ = [
        ("rows", ctypes.c_int64),
        ("tokens", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("past", ctypes.c_void_p),
        ("past_stride", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("first_slot", ctypes.c_int64),
        ("memory", ctypes.c_void_p),
        ("source_lengths", ctypes.c_void_p),
        ("k", ctypes.c_int64),
        ("log_p", ctypes.c_void_p),
        ("best", ctypes.c_void_p),
        ("scores", ctypes.c_void_p),
        ("shortlists", ctypes.c_void_p),
    ]


def why_not(model: Any, precision: str = "float32") -> str | None:
    """Return why the C++ engine cannot run this model in this precision here; None if it can."""
    try:
        layer_shape(model)
    except Unsupported as reason:
        return str(reason)
    if any(p.dtype != torch.float32 or p.device.type != "cpu" for p in model.parameters()):
        return "the weights are not float32 on the CPU"
    return _why_not_here(precision)


def _why_not_here(precision: str) -> str | None:
    """Return what this machine lacks for the engine; None if nothing."""
    if lacks("avx512f", "avx512bw", "avx512vl", "avx512dq"):
        return "this processor has no AVX-512"
    loaded = library(_SOURCE)
    if isinstance(loaded, str):
        return loaded
    if not loaded.engine_kinds() & (1 << KINDS[precision]):
        return f"this processor has no instructions for {precision}"
    return None


def fast(model: Any, precision: str = "auto", shortlist: Shortlist | None = None) -> Any:
    """Return the fastest engine for a translator or language model; the model itself if no engine can run it.

    >>> engine = regard.fast(regard.load("runs/small"), "int8")  # doctest: +SKIP
    >>> regard.translate("Where is my book?", engine)  # doctest: +SKIP
    'Wo ist mein Buch?'

    Args:
        model: a loaded model. On a CPU it gets the C++ engine, on a GPU the CUDA engine.
        precision: float32, bfloat16 or int8. On a CPU auto is int8 for a model that is stored in int8, if the
            processor has instructions for it, and float32 otherwise; on a GPU it is that of the weights.
        shortlist: restrict the output to likely tokens; C++ engine only.
    """
    arguments.one_of("precision", precision, PRECISIONS)
    if not hasattr(model, "start") or not hasattr(model, "device"):
        fix = f"; give it regard.load({str(model)!r})" if isinstance(model, str | Path) else ""
        raise OptionError(f"fast takes a translator or a language model, got {arguments.quoted(model)}{fix}")
    if model.device.type == "cuda":
        if shortlist is not None:
            raise OptionError(
                "a shortlist is for the engine on a CPU, and this model is on a GPU; "
                "choose the CPU, or leave it out"
            )
        from regard.decoding.engine.cuda import on_cuda

        return on_cuda(model, precision)
    chosen = _automatic(model) if precision == "auto" else precision
    reason = why_not(model, chosen)
    if reason is None:
        return Engine(model, chosen, shortlist)
    if chosen != "float32" and why_not(model) is None:
        print(f"regard: float32 instead of {chosen}, by the C++ engine: {reason}", file=sys.stderr)
        return Engine(model, "float32", shortlist)
    if shortlist is not None:
        raise OptionError(
            f"a shortlist needs the C++ engine, which cannot run this model: {reason}; leave it out"
        )
    if chosen != "float32":
        print(f"regard: float32 instead of {chosen}, by PyTorch: {reason}", file=sys.stderr)
    elif reason == _why_not_here(chosen) and reason not in _REPORTED:  # because of the machine, not the model
        _REPORTED.add(reason)
        print(
            f"regard: decoding with PyTorch, which is slower than the C++ engine: {reason}", file=sys.stderr
        )
    return model


def _automatic(model: Any) -> str:
    """The precision of the stored weights, where an engine can compute with them."""
    stored = getattr(model, "stored_precision", "float32")
    return stored if stored == "float32" or why_not(model, stored) is None else "float32"


class EngineMemory:
    """Cross-attention keys and values of encoded sentences, for all decoder layers.

    Attributes:
        buffer: the numbers of all sentences.
        address: the address of each sentence in it.
        lengths: the length of each sentence.
        allowed: with a shortlist, the tokens that each translation may contain, sorted.
    """

    def __init__(self, buffer: Tensor, address: Any, lengths: Any, allowed: list[Any] | None = None) -> None:
        self.buffer, self.address, self.lengths, self.allowed = buffer, address, lengths, allowed

    def allow(self, tokens: Sequence[Collection[int]]) -> None:
        """Add tokens to the shortlist of each sentence; to be called before `start`."""
        if self.allowed is not None:
            pairs = zip(self.allowed, tokens, strict=True)
            self.allowed = [
                np.union1d(shortlist, np.array([*added], np.int32)) if added else shortlist
                for shortlist, added in pairs
            ]


class Slots:
    """Self-attention keys and values of generated tokens: one slot per row and step.

    When all are used, those that no row refers to are dropped.
    """

    def __init__(self, size: int, rows: int, dtype: torch.dtype) -> None:
        # New memory costs more than the computation, so a thread reuses that of its last search.
        buffer = getattr(_reusable, "buffer", None)
        if buffer is None or buffer.dtype != dtype or buffer.shape[1] != size or len(buffer) < 16 * rows:
            buffer = torch.empty(max(256, 32 * rows), size, dtype=dtype)
        self.buffer: Tensor = buffer
        self.used, _reusable.buffer = 0, None

    def __del__(self) -> None:
        _reusable.buffer = self.buffer

    def take(self, rows: int, state: CppDecoderState) -> int:
        """Reserve slots for `rows` rows; return the first."""
        if self.used + rows > len(self.buffer):
            self._compact(rows, state)
        self.used += rows
        return self.used - rows

    def _compact(self, rows: int, state: CppDecoderState) -> None:
        """Keep the slots that `state` refers to, and make room for twice as many."""
        live = np.arange(state.past.shape[1]) < state.generated[:, None]
        used_slots, index = np.unique(state.past[live], return_inverse=True)
        size = len(self.buffer)
        while size < 2 * (len(used_slots) + rows):
            size *= 2
        larger = torch.empty(size, self.buffer.shape[1], dtype=self.buffer.dtype)
        torch.index_select(
            self.buffer, 0, torch.from_numpy(used_slots.astype(np.int64)), out=larger[: len(used_slots)]
        )
        self.buffer, self.used = larger, len(used_slots)
        state.past[live] = index


@dataclass(eq=False)
class CppDecoderState:
    """The decoder state of each row.

    Attributes:
        memories: the memories that `address` points into.
        shortlists: the shortlist of each row, or None.
        address: the address of the row's sentence in its memory.
        source_lengths: the length of that sentence.
        generated: the number of tokens generated so far.
        past: (rows, capacity) the slots of these tokens.
        slots: their keys and values.
    """

    memories: list[EngineMemory]
    shortlists: SharedShortlists | None
    address: NDArray[np.int64]
    source_lengths: NDArray[np.int32]
    generated: NDArray[np.int32]
    past: NDArray[np.int32]
    slots: Slots

    def reorder(self, rows: Tensor) -> CppDecoderState:
        """Select rows by index. Keys and values stay in place."""
        index = rows.numpy()
        address, memories = self.address[index], self.memories
        if len(memories) > 8:  # now and then, drop the memories of sentences that have left
            memories = [m for m in memories if np.isin(m.address, address).any()]
        return CppDecoderState(
            memories,
            self.shortlists and self.shortlists.reorder(index),
            address,
            self.source_lengths[index],
            self.generated[index],
            self.past[index],
            self.slots,
        )

    def join(self, other: CppDecoderState) -> CppDecoderState:
        """Append rows that have just started."""
        assert not other.generated.any()
        past = np.zeros((len(other.generated), self.past.shape[1]), np.int32)
        return replace(
            self,
            memories=self.memories + other.memories,
            shortlists=self.shortlists and other.shortlists and self.shortlists.join(other.shortlists),
            address=np.concatenate([self.address, other.address]),
            source_lengths=np.concatenate([self.source_lengths, other.source_lengths]),
            generated=np.concatenate([self.generated, other.generated]),
            past=np.concatenate([self.past, past]),
        )


class Engine:
    """A Transformer translator or language model in C++; equal to its torch model up to rounding."""

    can_join = True
    device = torch.device("cpu")
    training = False

    def __init__(self, model: Any, precision: str = "float32", shortlist: Shortlist | None = None) -> None:
        loaded = library(_SOURCE)
        assert not isinstance(loaded, str)
        shape = layer_shape(model)
        self.model, self.precision, self._library, self._dim = model, precision, loaded, shape.dim
        for name in ("source_tokenizer", "target_tokenizer", "config", "card"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))
        translates = hasattr(model, "encoder")
        if translates:  # only translators have `encode`
            self.encode = self._encode
        self.vocab = model.output.projection.out_features
        self._cache_dtype = torch.float32 if precision == "float32" else torch.bfloat16  # keys and values
        self._slot_size = len(model.decoder.layers) * 2 * shape.heads * shape.head_dim
        # Embeddings and norms are used in place, so they are kept; matrices are packed.
        self._tensors = [None if t is None else t.detach().contiguous() for t in model_tensors(model)]
        pointers = [None if t is None else t.data_ptr() for t in self._tensors]
        self._native = ctypes.c_void_p()
        loaded.engine_memory_size.restype = ctypes.c_int64
        _check(
            loaded.engine_new(
                ctypes.byref(self._model_shape(shape)),
                (ctypes.c_void_p * len(pointers))(*pointers),
                ctypes.byref(self._native),
            )
        )
        self.shortlist = shortlist
        if shortlist is not None:
            shortlist.check(model)
            output_weight = self._tensors[-2]
            assert output_weight is not None
            address = ctypes.c_void_p(output_weight.data_ptr())
            _check(loaded.engine_prepare_shortlists(self._native, address))
        self._lock, self._positions, self._position_tables = threading.Lock(), 0, []
        self._prepare_positions(FIRST_POSITIONS)

    def _model_shape(self, shape: Any) -> ModelShape:
        model, pre = self.model, shape.norm_place == "pre"
        return ModelShape(
            shape.dim, shape.heads, shape.head_dim, shape.inner, self.vocab, ACTIVATIONS[shape.activation],
            pre, hasattr(model, "encoder"), KINDS[self.precision],
            len(model.encoder.layers) if hasattr(model, "encoder") else 0, len(model.decoder.layers),
            shape.norm, shape.norm if pre else 0,
            model.target.scale, epsilon(model.decoder.layers[0].around_attention.norm),
        )  # fmt: skip

    def __del__(self) -> None:
        if getattr(self, "_native", None):
            self._library.engine_free(self._native)

    def _prepare_positions(self, length: int) -> None:
        """Compute position vectors up to a length. Older tables stay: another thread may be reading them."""
        with self._lock:
            while self._positions < length:
                self._positions = max(FIRST_POSITIONS, 2 * self._positions)
                stacks = (getattr(self.model, "encoder", None), self.model.decoder)
                tables = [
                    None if stack is None else position_table(stack, self._dim, self._positions)
                    for stack in stacks
                ]
                self._position_tables.append(tables)
                pointers = (None if t is None else ctypes.c_void_p(t.data_ptr()) for t in tables)
                self._library.engine_positions(self._native, *pointers)

    def _use_second_core(self) -> None:
        """Let a second thread compute half of each product if torch may use two; a worker uses one."""
        self._library.engine_use_helper(int(torch.get_num_threads() > 1))

    @torch.inference_mode()
    def _encode(self, source: Tensor, lengths: Tensor) -> EngineMemory:
        """Encode sentences (batch, S); padding is removed first."""
        self._use_second_core()
        sizes = lengths.numpy().astype(np.int32)
        self._prepare_positions(int(sizes.max(initial=0)))
        real = np.arange(source.shape[1]) < sizes[:, None]  # (batch, S)
        tokens = np.ascontiguousarray(source.numpy()[real])
        positions = np.broadcast_to(np.arange(source.shape[1], dtype=np.int32), real.shape)[real]
        memory_size = self._library.engine_memory_size
        numbers = np.array([memory_size(self._native, ctypes.c_int64(int(n))) for n in sizes], np.int64)
        buffer = torch.empty(int(numbers.sum()), dtype=self._cache_dtype)
        address = buffer.data_ptr() + buffer.element_size() * (np.cumsum(numbers) - numbers)
        arrays = (sizes, tokens, np.ascontiguousarray(positions), address)
        count = ctypes.c_int64(len(sizes))
        _check(
            self._library.engine_encode(self._native, count, *(ctypes.c_void_p(_address(a)) for a in arrays))
        )
        allowed = None
        if self.shortlist is not None:
            allowed = self.shortlist.allowed(np.split(tokens, np.cumsum(sizes)[:-1]))
        return EngineMemory(buffer, address, sizes, allowed)

    def start(self, memory: EngineMemory | None, first: Tensor) -> CppDecoderState:
        reject_interventions(self, self.model)
        self._use_second_core()
        rows = len(first)
        shortlists = None
        if memory is not None and memory.allowed is not None:
            shortlists = SharedShortlists.of(memory.allowed, lambda tokens: OutputColumns(self, tokens))
        return CppDecoderState(
            memories=[] if memory is None else [memory],
            shortlists=shortlists,
            address=np.zeros(rows, np.int64) if memory is None else memory.address,
            source_lengths=np.zeros(rows, np.int32) if memory is None else memory.lengths,
            generated=np.zeros(rows, np.int32),
            past=np.zeros((rows, 32), np.int32),
            slots=Slots(self._slot_size, rows, self._cache_dtype),
        )

    def best(self, tokens: Tensor, state: CppDecoderState, k: int) -> tuple[Tensor, Tensor, CppDecoderState]:
        """One step; return log p and ids of the k best next tokens of each row, (rows, at most k)."""
        rows, k = len(tokens), min(k, self.vocab)
        log_p, best = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
        self._step(tokens, state, k=k, log_p=log_p.data_ptr(), best=best.data_ptr())
        return log_p, best, state

    def step(self, tokens: Tensor, state: CppDecoderState) -> tuple[Tensor, CppDecoderState]:
        """One step; return the scores of the next token, (rows, vocabulary)."""
        scores = torch.empty(len(tokens), self.vocab)
        self._step(tokens, state, scores=scores.data_ptr())
        return scores, state

    def read(self, tokens: Tensor, state: CppDecoderState) -> CppDecoderState:
        """Prefill: feed the tokens of a prefix, (rows, T); return the state after them."""
        for column in tokens.unbind(1):
            self.best(column.contiguous(), state, 1)
        return state

    def _step(self, tokens: Tensor, state: CppDecoderState, **outputs: int) -> None:
        """Run one step and update the state in place. `outputs` are fields of `StepPlan`."""
        rows, longest = len(tokens), int(state.generated.max(initial=0)) + 1
        self._prepare_positions(longest)
        first_slot = state.slots.take(rows, state)
        if longest > state.past.shape[1]:
            state.past = np.pad(state.past, ((0, 0), (0, state.past.shape[1])))
        tokens = tokens.contiguous()
        plan = StepPlan(
            rows=rows,
            tokens=tokens.data_ptr(),
            lengths=_address(state.generated),
            past=_address(state.past),
            past_stride=state.past.shape[1],
            slots=state.slots.buffer.data_ptr(),
            first_slot=first_slot,
            memory=_address(state.address),
            source_lengths=_address(state.source_lengths),
            shortlists=None if state.shortlists is None else _address(state.shortlists.rows),
            **outputs,
        )
        _check(self._library.engine_step(self._native, ctypes.byref(plan)))
        state.past[np.arange(rows), state.generated] = first_slot + np.arange(rows)
        state.generated = state.generated + 1


class OutputColumns:
    """The output weights of some tokens (sorted ids) as a matrix of their own, for a shortlist."""

    def __init__(self, engine: Engine, tokens: Any) -> None:
        self._engine = engine  # must live as long as its columns
        columns = ctypes.c_void_p()
        count, address = ctypes.c_int64(len(tokens)), ctypes.c_void_p(_address(tokens))
        _check(engine._library.engine_select_columns(engine._native, count, address, ctypes.byref(columns)))
        self.address: int = columns.value or 0

    def __del__(self) -> None:
        if getattr(self, "address", None):
            self._engine._library.engine_free_columns(ctypes.c_void_p(self.address))


def _check(code: int) -> None:
    check_code(code, "the decoding engine")


def _address(array: Any) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
