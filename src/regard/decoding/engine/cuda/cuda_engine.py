"""The engine as a writer, for the one search; plain beams it searches itself (`beam`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.tokenizer import PAD
from regard.decoding.beam import Beam
from regard.decoding.engine.cuda.buffers import FEWEST, BufferPool, Buffers, Memory, bucket
from regard.decoding.engine.cuda.device_beam import search, top
from regard.decoding.engine.cuda.graphs import Graphs, Runner, at_once
from regard.decoding.engine.cuda.packed_weights import Readout, Weights, exact, joined
from regard.decoding.engine.cuda.step_attention import any_mask, look
from regard.decoding.engine.layout import shape
from regard.decoding.strategy import SearchTask

FIRST = 64  # words there is room for when nobody says how many will come


class DecoderState:
    """What the one search carries: rows of a board, which is found at the first word. Like torch's, it is changed by each step."""

    def __init__(self, engine: CudaEngine, memory: Memory | None, rows: int) -> None:
        self.engine, self.memory, self.rows = engine, memory, rows
        self.board: Buffers | None = None
        self.at = 0

    def __del__(self) -> None:
        if self.board is not None:
            self.engine.boards.give(self.board)

    @property
    def source(self) -> int:
        if self.board is not None:
            return self.board.size.source
        return 0 if self.memory is None else self.memory.cross.shape[4]

    def ready(self) -> Buffers:
        """The board, with room for one more word."""
        if self.board is None:
            self.board = self.engine.boards.take(self.engine, self.rows, 1, self.source, FIRST)
            self.board.load(self.memory)
            self.memory = None
        elif self.at >= self.board.size.length:
            self._move(torch.arange(self.rows, device=self.engine.device), 2 * self.at)
        return self.board

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> DecoderState:
        """Keep these rows, in this order."""
        if self.board is None:
            self.memory = None if self.memory is None else self.memory.reorder(rows)
        elif bucket(len(rows)) == self.board.size.groups:
            self.board.follow(self.board, rows, self.at)
        else:
            self._move(rows, self.board.size.length)
        self.rows = len(rows)
        return self

    def _move(self, rows: Tensor, length: int) -> None:
        old = self.board
        assert old is not None
        self.board = self.engine.boards.take(self.engine, len(rows), 1, old.size.source, length)
        self.board.follow(old, rows, self.at)
        self.engine.boards.give(old)


def engine(model: Any, dtype: torch.dtype | None = None, run: Runner | None = None) -> CudaEngine:
    """The engine of a translator or a language model."""
    return (CudaTranslator if hasattr(model, "encoder") else CudaEngine)(model, dtype, run)


class CudaEngine:
    """A Transformer in float32 or bfloat16 as a writer; equal to its torch model but for rounding. By itself a language model."""

    joins = False  # sentences of a batch start together: one position serves all
    training = False

    def __init__(self, model: Any, dtype: torch.dtype | None = None, run: Runner | None = None) -> None:
        """dtype: that of the weights unless told. `run` runs the steps: as CUDA graphs on a GPU, at once elsewhere."""
        self.made, self.model = shape(model), model
        self.dtype, self.device = dtype or model.target.table.weight.dtype, model.device
        for name in ("source_tokenizer", "target_tokenizer", "config", "card"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))
        self.vocab, self.scale = model.output.projection.out_features, model.target.scale
        self.target = model.target.table.weight.detach().to(self.dtype)
        self.exact = exact(self.dtype)
        with torch.no_grad():
            self.readout = Readout(model.output.projection, self.dtype)
            self.decoder = Weights(model.decoder, self.made, self.dtype)
        self._seen, self._hidden = (
            torch.full((), x, dtype=self.exact, device=self.device) for x in (0.0, -torch.inf)
        )
        self._run = run or (Graphs(self.device) if self.device.type == "cuda" else at_once)
        self.boards = BufferPool(self.device)

    def start(self, memory: Memory | None, first: Tensor) -> DecoderState:
        return DecoderState(self, memory, len(first))

    @torch.inference_mode()
    def step(self, tokens: Tensor, carried: DecoderState) -> tuple[Tensor, DecoderState]:
        """One more word of each row → scores of the next, (rows, vocabulary)."""
        scores = self._advance(tokens, carried, "scores", self._scores)
        return scores[: carried.rows, : self.vocab].clone(), carried

    @torch.inference_mode()
    def best(self, tokens: Tensor, carried: DecoderState, k: int) -> tuple[Tensor, Tensor, DecoderState]:
        """One more word of each row → log p and numbers of the k best next words, (rows, at most k), best first."""
        k = min(k, self.vocab)
        log_p, words = self._advance(
            tokens, carried, ("best", k), lambda board, length: self.best_words(board, length, k)
        )
        return log_p[: carried.rows].clone(), words[: carried.rows].clone(), carried

    def read(self, tokens: Tensor, carried: DecoderState) -> DecoderState:
        """Words that are given, (rows, T): the state behind them."""
        for column in tokens.unbind(1):
            self.best(column, carried, 1)
        return carried

    def _advance(
        self, tokens: Tensor, carried: DecoderState, key: Any, body: Callable[[Buffers, int], Any]
    ) -> Any:
        """What the body gives lies where the next step will write, so it is copied."""
        board = carried.ready()
        board.tokens[: carried.rows, 0].copy_(tokens)
        carried.at += 1

        def whole(board: Buffers, length: int) -> Any:
            found = body(board, length)
            board.at.add_(1)
            return found

        return self.run_on(board, key, carried.at, whole)

    def run_on(self, board: Buffers, key: Any, words: int, body: Callable[[Buffers, int], Any]) -> Any:
        """Run a step in which at most so many words are seen."""
        length = min(bucket(words), board.size.length)
        return self._run(board.recordings, (key, length), lambda: body(board, length))

    # ---------------------------------------------------------------------------------- one step; nothing here may wait for a value
    def _features(self, board: Buffers, length: int) -> Tensor:
        """The words on the board taken in → features of the next, (rows, dim). Only the first `length` places are looked at."""
        groups, width = board.size[:2]
        shape = (groups, width, -1, self.made.heads, self.made.width)
        x = torch.add(
            board.places.index_select(0, board.at),
            F.embedding(board.tokens.flatten(), self.target),
            alpha=self.scale,
        )
        sight = self._sight(board, length)
        for i, layer in enumerate(self.decoder.layers):

            def own(qkv: Tensor, cache: Tensor = board.cache[i]) -> Tensor:
                qkv = qkv.view(shape).permute(2, 0, 3, 1, 4)  # (3, groups, heads, width, dim of a head)
                cache.index_copy_(3, board.at, qkv[1:, :, :, None])
                k, v = cache[:, :, :, :length].flatten(3, 4)
                return look(qkv[0], k, v, sight).transpose(1, 2).reshape(groups * width, -1)

            def cross(q: Tensor, memory: Tensor = board.cross[i]) -> Tensor:
                q = q.view(shape)[:, :, 0].transpose(1, 2)
                return look(q, memory[0], memory[1], board.hidden).transpose(1, 2).reshape(groups * width, -1)

            x = self.decoder.layer(layer, x, own, cross if board.size.source else None)
        return self.decoder.norm(x)

    def _sight(self, board: Buffers, length: int) -> Tensor:
        """0 where a row may look, −inf elsewhere, (groups or 1, 1, width, length · width): at the words of its own text."""
        seen = board.steps[:length] <= board.at
        if board.size.width > 1:
            board.past.index_copy_(2, board.at, board.slots[:, None].expand(len(board.past), -1, 1))
            seen = ((board.past[:, :, :length, None] == board.slots) & seen[:, None]).flatten(2)[:, None]
        else:
            seen = seen[None, None, None]
        return torch.where(seen, self._seen, self._hidden)

    def _scores(self, board: Buffers, length: int) -> Tensor:
        return self.readout(self._features(board, length))

    def best_words(self, board: Buffers, length: int, k: int) -> tuple[Tensor, Tensor]:
        """log p and numbers of the best words of each row, (rows, k)."""
        return top(torch.log_softmax(self._scores(board, length), -1), k)

    @torch.inference_mode()
    def search(
        self, tasks: list[SearchTask], carried: DecoderState, first: Tensor, beam: Beam, end: int
    ) -> None:
        """Find the texts of all tasks by a plain beam."""
        search(self, tasks, carried, first, beam, end)


class CudaTranslator(CudaEngine):
    """An encoder before it."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None, run: Runner | None = None) -> None:
        super().__init__(model, dtype, run)
        self.source = model.source.table.weight.detach().to(self.dtype)
        maps = [linear for layer in model.decoder.layers for linear in (layer.cross.Wk, layer.cross.Wv)]
        with torch.no_grad():
            self.encoder = Weights(model.encoder, self.made, self.dtype)
            self.memories = joined(tuple(maps), self.dtype)  # keys and values of all layers are one product

    @torch.inference_mode()
    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Sentences (batch, S) → memory."""
        source = F.pad(source, (0, -source.shape[1] % FEWEST), value=PAD)
        rows, length = source.shape
        away = torch.arange(length, device=self.device) >= lengths[:, None]
        hidden = torch.where(away, self._hidden, self._seen)[:, None, None]
        mask = hidden.to(self.dtype)
        x = torch.add(self.encoder.places(length), F.embedding(source, self.source), alpha=self.scale)

        def own(qkv: Tensor) -> Tensor:
            q, k, v = qkv.view(rows, length, 3, self.made.heads, -1).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, mask, scale=1.0).transpose(1, 2).flatten(2)

        with any_mask(self.device):
            for layer in self.encoder.layers:
                x = self.encoder.layer(layer, x, own)
        cross = F.linear(self.encoder.norm(x), *self.memories).view(
            rows, length, -1, 2, self.made.heads, self.made.width
        )
        return Memory(cross.permute(2, 3, 0, 4, 1, 5), hidden)
