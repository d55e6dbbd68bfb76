"""The CUDA engine: runs a Transformer with the interface of our decoders (`start`, `step`, `best`, `read`).

Plain beam search (no diverse groups) runs on the device, see `device_beam`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.attention.intervening import refuse_engine
from regard.data.tokenizer import PAD
from regard.decoding.beam import Beam
from regard.decoding.engine.cuda.buffers import MULTIPLE, BufferPool, Buffers, Memory, bucket
from regard.decoding.engine.cuda.device_beam import search, top
from regard.decoding.engine.cuda.graphs import Graphs, Runner, run_eagerly
from regard.decoding.engine.cuda.packed_weights import Readout, Weights, fuse, score_dtype
from regard.decoding.engine.cuda.step_attention import any_mask_kernel, attend_rows
from regard.decoding.engine.layout import layer_shape
from regard.decoding.strategy import SearchTask

FIRST_LENGTH = 64  # target tokens that the first buffers have room for


class CudaDecoderState:
    """The decoder state of a batch, changed in place; its `Buffers` are allocated at the first step."""

    def __init__(self, engine: CudaEngine, memory: Memory | None, rows: int) -> None:
        self.engine, self.memory, self.rows = engine, memory, rows
        self.buffers: Buffers | None = None
        self.position = 0

    def __del__(self) -> None:
        if self.buffers is not None:
            self.engine.pool.release(self.buffers)

    @property
    def source(self) -> int:
        """Length of the source, with padding."""
        if self.buffers is not None:
            return self.buffers.size.source
        return 0 if self.memory is None else self.memory.cross.shape[4]

    def buffers_with_room(self) -> Buffers:
        """Return the buffers, enlarged if the next token does not fit."""
        if self.buffers is None:
            self.buffers = self.engine.pool.take(self.engine, self.rows, 1, self.source, FIRST_LENGTH)
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
        elif bucket(len(rows)) == self.buffers.size.groups:
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


def engine(model: Any, dtype: torch.dtype | None = None, run: Runner | None = None) -> CudaEngine:
    """Return a `CudaTranslator` for a translator, a `CudaEngine` for a language model."""
    return (CudaTranslator if hasattr(model, "encoder") else CudaEngine)(model, dtype, run)


class CudaEngine:
    """A Transformer language model in float32 or bfloat16; equal to its torch model up to rounding."""

    joins = False  # all sentences of a batch have the same position, so none can join later
    training = False

    def __init__(self, model: Any, dtype: torch.dtype | None = None, run: Runner | None = None) -> None:
        """Pack the weights of a model.

        Args:
            model: a translator or language model.
            dtype: of weights and activations; by default that of the model.
            run: how to run a step; by default as a CUDA graph on a GPU, eagerly elsewhere.
        """
        self.layer_shape, self.model = layer_shape(model), model
        self.dtype, self.device = dtype or model.target.table.weight.dtype, model.device
        for name in ("source_tokenizer", "target_tokenizer", "config", "card"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))
        self.vocab, self.scale = model.output.projection.out_features, model.target.scale
        self.target = model.target.table.weight.detach().to(self.dtype)
        self.score_dtype = score_dtype(self.dtype)
        with torch.no_grad():
            self.readout = Readout(model.output.projection, self.dtype)
            self.decoder = Weights(model.decoder, self.layer_shape, self.dtype)
        self._visible, self._masked = (
            torch.full((), x, dtype=self.score_dtype, device=self.device) for x in (0.0, -torch.inf)
        )
        self._run = run or (Graphs(self.device) if self.device.type == "cuda" else run_eagerly)
        self.pool = BufferPool(self.device)

    def start(self, memory: Memory | None, first: Tensor) -> CudaDecoderState:
        refuse_engine(self, self.model)
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
        """Return the state after the tokens of a prefix, (rows, T)."""
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
        groups, width = buffers.size[:2]
        shape = (groups, width, -1, self.layer_shape.heads, self.layer_shape.head_dim)
        x = torch.add(
            buffers.positions.index_select(0, buffers.position),
            F.embedding(buffers.tokens.flatten(), self.target),
            alpha=self.scale,
        )
        mask = self._mask(buffers, length)
        for i, layer in enumerate(self.decoder.layers):

            def self_attention(qkv: Tensor, cache: Tensor = buffers.cache[i]) -> Tensor:
                qkv = qkv.view(shape).permute(2, 0, 3, 1, 4)  # (3, groups, heads, width, head dim)
                cache.index_copy_(3, buffers.position, qkv[1:, :, :, None])
                k, v = cache[:, :, :, :length].flatten(3, 4)
                return attend_rows(qkv[0], k, v, mask).transpose(1, 2).reshape(groups * width, -1)

            def cross_attention(q: Tensor, memory: Tensor = buffers.cross[i]) -> Tensor:
                q = q.view(shape)[:, :, 0].transpose(1, 2)
                return (
                    attend_rows(q, memory[0], memory[1], buffers.source_mask)
                    .transpose(1, 2)
                    .reshape(groups * width, -1)
                )

            x = self.decoder.layer(layer, x, self_attention, cross_attention if buffers.size.source else None)
        return self.decoder.norm(x)

    def _mask(self, buffers: Buffers, length: int) -> Tensor:
        """Return the self-attention mask, 0 or −inf, (groups or 1, 1, width, length · width)."""
        visible = buffers.steps[:length] <= buffers.position
        if buffers.size.width > 1:
            buffers.past.index_copy_(
                2, buffers.position, buffers.slots[:, None].expand(len(buffers.past), -1, 1)
            )
            own = buffers.past[:, :, :length, None] == buffers.slots  # (groups, width, length, width)
            visible = (own & visible[:, None]).flatten(2)[:, None]
        else:
            visible = visible[None, None, None]
        return torch.where(visible, self._visible, self._masked)

    def _scores(self, buffers: Buffers, length: int) -> Tensor:
        return self.readout(self._features(buffers, length))

    def best_tokens(self, buffers: Buffers, length: int, k: int) -> tuple[Tensor, Tensor]:
        """Return log p and ids of the best next tokens of each row, (rows, k)."""
        return top(torch.log_softmax(self._scores(buffers, length), -1), k)

    @torch.inference_mode()
    def search(
        self, tasks: list[SearchTask], state: CudaDecoderState, first: Tensor, beam: Beam, end: int
    ) -> None:
        """Run plain beam search (no diverse groups) for all tasks."""
        search(self, tasks, state, first, beam, end)


class CudaTranslator(CudaEngine):
    """A Transformer translator: an encoder, and a decoder with cross-attention."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None, run: Runner | None = None) -> None:
        super().__init__(model, dtype, run)
        self.source = model.source.table.weight.detach().to(self.dtype)
        linears = [linear for layer in model.decoder.layers for linear in (layer.cross.Wk, layer.cross.Wv)]
        with torch.no_grad():
            self.encoder = Weights(model.encoder, self.layer_shape, self.dtype)
            self.cross_key_values = fuse(tuple(linears), self.dtype)  # keys and values of all layers

    @torch.inference_mode()
    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Encode sentences (batch, S) to the keys and values of cross-attention."""
        source = F.pad(source, (0, -source.shape[1] % MULTIPLE), value=PAD)
        rows, length = source.shape
        is_padding = torch.arange(length, device=self.device) >= lengths[:, None]  # (batch, S)
        source_mask = torch.where(is_padding, self._masked, self._visible)[:, None, None]
        mask = source_mask.to(self.dtype)
        x = torch.add(self.encoder.positions(length), F.embedding(source, self.source), alpha=self.scale)

        def self_attention(qkv: Tensor) -> Tensor:
            q, k, v = qkv.view(rows, length, 3, self.layer_shape.heads, -1).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, mask, scale=1.0).transpose(1, 2).flatten(2)

        with any_mask_kernel(self.device):
            for layer in self.encoder.layers:
                x = self.encoder.layer(layer, x, self_attention)
        cross = F.linear(self.encoder.norm(x), *self.cross_key_values).view(
            rows, length, -1, 2, self.layer_shape.heads, self.layer_shape.head_dim
        )
        return Memory(cross.permute(2, 3, 0, 4, 1, 5), source_mask)
