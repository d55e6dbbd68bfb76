"""The CUDA engine: runs a Transformer with the interface of our decoders (`start`, `step`, `best`, `read`).

Plain beam search (no diverse groups) runs on the device, see `device_beam`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.attend import attend
from regard.attention.energy import Dot
from regard.attention.intervening import reject_interventions
from regard.attention.kernels.triton import is_installed
from regard.attention.position_masks import Padding
from regard.data.tokenizer import PAD
from regard.decoding.beam import Beam
from regard.decoding.engine.cuda.buffers import MULTIPLE, BufferPool, Buffers, CudaMemory, bucket
from regard.decoding.engine.cuda.device_beam import search
from regard.decoding.engine.cuda.graphs import Graphs, Runner, run_eagerly
from regard.decoding.engine.cuda.packed_weights import PackedWeights, Readout, fuse, score_dtype
from regard.decoding.engine.cuda.step_operations import FusedOperations, TorchOperations
from regard.decoding.engine.layout import layer_shape
from regard.decoding.strategy import SearchTask
from regard.layers.fused_parts import is_enabled

FIRST_LENGTH = 64  # target tokens that the first buffers have room for


class CudaDecoderState:
    """The decoder state of a batch, changed in place; its `Buffers` are allocated at the first step."""

    def __init__(self, engine: CudaEngine, memory: CudaMemory | None, rows: int) -> None:
        self.engine, self.memory, self.rows = engine, memory, rows
        self.buffers: Buffers | None = None
        self.position = 0

    def __del__(self) -> None:
        if self.buffers is not None:
            self.engine.pool.release(self.buffers)

    @property
    def source_length(self) -> int:
        """Number of source tokens, with padding; 0 for a language model."""
        if self.buffers is not None:
            return self.buffers.size.source
        return 0 if self.memory is None else self.memory.cross.shape[4]

    def buffers_with_room(self) -> Buffers:
        """Return the buffers, enlarged if the next token does not fit."""
        if self.buffers is None:
            self.buffers = self.engine.pool.take(self.engine, self.rows, 1, self.source_length, FIRST_LENGTH)
            self.buffers.load(self.memory)
            self.memory = None
        elif self.position >= self.buffers.size.length:
            self._move(torch.arange(self.rows, device=self.engine.device), 2 * self.position)
        return self.buffers

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> CudaDecoderState:
        """Select rows by index, in place."""
        if self.buffers is None:
            self.memory = None if self.memory is None else self.memory.reorder(rows)
        elif bucket(len(rows)) == self.buffers.size.sentences:
            self.buffers.copy_from(self.buffers, rows, self.position)
        else:
            self._move(rows, self.buffers.size.length)
        self.rows = len(rows)
        return self

    def _move(self, rows: Tensor, length: int) -> None:
        old = self.buffers
        assert old is not None
        self.buffers = self.engine.pool.take(self.engine, len(rows), 1, old.size.source, length)
        self.buffers.copy_from(old, rows, self.position)
        self.engine.pool.release(old)


def engine(
    model: Any, dtype: torch.dtype | None = None, run: Runner | None = None, fused: bool | None = None
) -> CudaEngine:
    """Return a `CudaTranslator` for a translator, a `CudaEngine` for a language model."""
    return (CudaTranslator if hasattr(model, "encoder") else CudaEngine)(model, dtype, run, fused)


class CudaEngine:
    """A Transformer language model in float32 or bfloat16; equal to its torch model up to rounding."""

    can_join = False  # all sentences of a batch have the same position, so none can join later
    training = False

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype | None = None,
        run: Runner | None = None,
        fused: bool | None = None,
    ) -> None:
        """Pack the weights of a model.

        Args:
            model: a translator or language model.
            dtype: of weights and activations; by default that of the model.
            run: how to run a step; by default as a CUDA graph on a GPU, eagerly elsewhere.
            fused: use our Triton kernels; by default on a GPU where they are enabled (layers/fused_parts.py).
        """
        self.layer_shape, self.model = layer_shape(model), model
        self.dtype, self.device = dtype or model.target.table.weight.dtype, model.device
        for name in ("source_tokenizer", "target_tokenizer", "config", "card"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))
        self.vocab, self.scale = model.output.projection.out_features, model.target.scale
        self.token_ids = np.arange(self.vocab).astype(object)  # Python integers that all hypotheses share
        self.target = model.target.table.weight.detach().to(self.dtype)
        self.score_dtype = score_dtype(self.dtype)
        self.fused = self._can_fuse() if fused is None else fused
        self.fused_beam = self.fused and is_enabled("beam")
        with torch.no_grad():
            self.readout = Readout(model.output.projection, self.dtype)
            self.decoder = PackedWeights(model.decoder, self.layer_shape, self.dtype, self.fused)
        plain = TorchOperations(self.device, self.score_dtype)
        self.operations = FusedOperations() if self.fused else plain
        self._visible, self._masked = plain.visible, plain.masked
        self._run = run or (Graphs(self.device) if self.device.type == "cuda" else run_eagerly)
        self.pool = BufferPool(self.device)

    def _can_fuse(self) -> bool:
        on_gpu = self.device.type == "cuda" and self.dtype in FusedOperations.DTYPES
        return on_gpu and is_installed() and is_enabled("decoding")

    def start(self, memory: CudaMemory | None, first: Tensor) -> CudaDecoderState:
        reject_interventions(self, self.model)
        return CudaDecoderState(self, memory, len(first))

    @torch.inference_mode()
    def step(self, tokens: Tensor, state: CudaDecoderState) -> tuple[Tensor, CudaDecoderState]:
        """Run one step; return the scores of the next token, (rows, vocabulary)."""
        scores = self._advance(tokens, state, "scores", self._scores)
        return scores[: state.rows, : self.vocab].clone(), state

    @torch.inference_mode()
    def best(
        self, tokens: Tensor, state: CudaDecoderState, k: int
    ) -> tuple[Tensor, Tensor, CudaDecoderState]:
        """Run one step; return log p and ids of the k best next tokens, (rows, at most k), best first."""
        k = min(k, self.vocab)
        log_p, best = self._advance(
            tokens, state, ("best", k), lambda buffers, length: self.best_tokens(buffers, length, k)
        )
        return log_p[: state.rows].clone(), best[: state.rows].clone(), state

    def read(self, tokens: Tensor, state: CudaDecoderState) -> CudaDecoderState:
        """Prefill: feed the tokens of a prefix, (rows, T); return the state after them."""
        for column in tokens.unbind(1):
            self.best(column, state, 1)
        return state

    def _advance(
        self, tokens: Tensor, state: CudaDecoderState, key: Any, body: Callable[[Buffers, int], Any]
    ) -> Any:
        """Run `body` as one step. The next step overwrites the result, so callers must copy it."""
        buffers = state.buffers_with_room()
        buffers.tokens[: state.rows, 0].copy_(tokens)
        state.position += 1

        def step(buffers: Buffers, length: int) -> Any:
            result = body(buffers, length)
            buffers.position.add_(1)
            return result

        return self.run_on(buffers, key, state.position, step)

    def run_on(self, buffers: Buffers, key: Any, tokens: int, body: Callable[[Buffers, int], Any]) -> Any:
        """Run `body(buffers, length)` as the CUDA graph of `key`; `length` is `tokens` rounded up."""
        length = min(bucket(tokens), buffers.size.length)
        return self._run(buffers.graphs, (key, length), lambda: body(buffers, length))

    # The methods below run inside CUDA graphs, so they must not synchronize with the GPU.

    def _features(self, buffers: Buffers, length: int) -> Tensor:
        """Return the features of the next token, (rows, dim); only the first `length` positions are read."""
        x = torch.add(
            buffers.positions.index_select(0, buffers.position),
            F.embedding(buffers.tokens.flatten(), self.target),
            alpha=self.scale,
        )
        operations, sublayers = self.operations, []
        mask = operations.start(buffers, length)
        for i, layer in enumerate(self.decoder.layers):

            def self_attention(qkv: Tensor, cache: Tensor = buffers.cache[i]) -> Tensor:
                return operations.self_attention(qkv, cache, buffers, length, mask)

            def cross_attention(q: Tensor, memory: Tensor = buffers.cross[i]) -> Tensor:
                return operations.cross_attention(q, memory, buffers)

            cross = cross_attention if buffers.size.source else None
            sublayers += self.decoder.sublayers(layer, self_attention, cross)
        return self.decoder.run(x, sublayers)

    def _scores(self, buffers: Buffers, length: int) -> Tensor:
        return self.readout(self._features(buffers, length))

    def best_tokens(self, buffers: Buffers, length: int, k: int) -> tuple[Tensor, Tensor]:
        """Return log p and ids of the best next tokens of each row, (rows, k)."""
        return self.operations.best(self._scores(buffers, length), k)

    @torch.inference_mode()
    def search(
        self, tasks: list[SearchTask], state: CudaDecoderState, first: Tensor, beam: Beam, end: int
    ) -> None:
        """Run plain beam search (no diverse groups) for all tasks."""
        search(self, tasks, state, first, beam, end)


class CudaTranslator(CudaEngine):
    """A Transformer translator: an encoder, and a decoder with cross-attention."""

    def __init__(self, model: Any, *options: Any, **keywords: Any) -> None:
        super().__init__(model, *options, **keywords)
        self.source = model.source.table.weight.detach().to(self.dtype)
        linears = [linear for layer in model.decoder.layers for linear in (layer.cross.Wk, layer.cross.Wv)]
        with torch.no_grad():
            self.encoder = PackedWeights(model.encoder, self.layer_shape, self.dtype, self.fused)
            self.cross_key_values = fuse(tuple(linears), self.dtype)  # keys and values of all layers

    @torch.inference_mode()
    def encode(self, source: Tensor, lengths: Tensor) -> CudaMemory:
        """Encode sentences (batch, S) to the keys and values of cross-attention."""
        source = F.pad(source, (0, -source.shape[1] % MULTIPLE), value=PAD)
        rows, length = source.shape
        is_padding = torch.arange(length, device=self.device) >= lengths[:, None]  # (batch, S)
        source_mask = torch.where(is_padding, self._masked, self._visible)[:, None, None]
        padding = Padding(lengths, finite=True)
        x = torch.add(self.encoder.positions(length), F.embedding(source, self.source), alpha=self.scale)

        def self_attention(qkv: Tensor) -> Tensor:
            q, k, v = qkv.view(rows, length, 3, self.layer_shape.heads, -1).permute(2, 0, 3, 1, 4)
            # The scale is part of the projection of the queries.
            return attend(q, k, v, energy=Dot(), mask=padding).transpose(1, 2).flatten(2)

        layers = (self.encoder.sublayers(layer, self_attention) for layer in self.encoder.layers)
        x = self.encoder.run(x, list(chain.from_iterable(layers)))
        cross = F.linear(x, *self.cross_key_values).view(
            rows, length, -1, 2, self.layer_shape.heads, self.layer_shape.head_dim
        )
        return CudaMemory(cross.permute(2, 3, 0, 4, 1, 5), source_mask)
