"""Beam search on the GPU; the host asks only every few steps which sentences are finished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.data.tokenizer import PAD
from regard.decoding.beam import Beam
from regard.decoding.engine.cuda.buffers import Buffers, bucket
from regard.decoding.gc_pause import gc_paused
from regard.decoding.strategy import Hypothesis, SearchTask
from regard.errors import OptionError

if TYPE_CHECKING:
    from regard.decoding.engine.cuda.cuda_engine import CudaDecoderState, CudaEngine

CHECK_EVERY = 8  # steps between checks which sentences are finished; a check waits for the GPU
MAX_CANDIDATES = 256  # rows × tokens of a sentence that the fused kernel compares with each other


def beam_step(engine: CudaEngine, buffers: Buffers, length: int, k: int, end: int) -> None:
    """Run one step of plain beam search; the result is that of `Search` and `Beam.choose` on the host."""
    log_p, best = engine.best_tokens(buffers, length, k)
    if engine.fused_beam and buffers.size.width * k <= MAX_CANDIDATES:
        extend_fused(buffers, log_p, best, end)
    else:
        extend(buffers, length, log_p, best, end)
    buffers.position.add_(1)


def extend(buffers: Buffers, length: int, log_p: Tensor, best: Tensor, end: int) -> None:
    """Extend the hypotheses by the best tokens of each row: log p and ids, (rows, k)."""
    (sentences, width), k = buffers.size[:2], log_p.shape[1]
    total = (buffers.score[..., None] + log_p.view(sentences, width, k)).flatten(1)
    token, order = best.view(sentences, -1), torch.zeros_like(total, dtype=torch.long)
    if total.shape[1] > 1:
        total, order = torch.sort(total, stable=True, dim=1, descending=True)
        total, order = total[:, : 2 * width], order[:, : 2 * width]
        token = token.gather(1, order)
    row = order // k
    possible, ends = total > -torch.inf, token == end
    ended = possible & ends
    ended[:, width:].fill_(False)  # an end counts if it is among the best `width` candidates
    continued = possible & ~ends
    rank = continued.cumsum(1)
    continued = continued & (rank <= width)
    column = (buffers.ended[:, None] + ended.cumsum(1) - 1).masked_fill(~ended, 2 * width)
    for stored, values in (
        (buffers.ended_score, total),
        (buffers.ended_row, row),
        (buffers.ended_at, buffers.position.expand_as(row)),
    ):
        stored.scatter_(1, column, values)
    buffers.ended.add_(ended.sum(1))
    column = (rank - 1).masked_fill(~continued, width)

    def chosen(values: Tensor, default: float) -> Tensor:
        return values.new_full((sentences, width + 1), default).scatter_(1, column, values)[:, :width]

    update_rows(
        buffers, length, chosen(total, -torch.inf), chosen(token, PAD), chosen(row, 0), continued.any(1)
    )


def update_rows(
    buffers: Buffers, length: int, score: Tensor, token: Tensor, row: Tensor, any_continued: Tensor
) -> None:
    """Replace the rows by the chosen hypotheses; finished sentences keep their result."""
    buffers.last.copy_(torch.where(buffers.done[:, None], buffers.last, score))
    buffers.done.logical_or_(
        (buffers.ended >= buffers.size.width) | (buffers.position + 1 >= buffers.limit) | ~any_continued
    )
    buffers.score.copy_(score.masked_fill(buffers.done[:, None], -torch.inf))
    buffers.tokens.copy_(token)
    buffers.history.index_copy_(0, buffers.position, token[None].to(torch.int32))
    buffers.parents.index_copy_(0, buffers.position, row[None].to(torch.int16))
    if buffers.size.width > 1:
        past = buffers.past[:, :, :length]
        past.copy_(past.gather(1, row[..., None].expand(-1, -1, length)))


def extend_fused(buffers: Buffers, log_p: Tensor, best: Tensor, end: int) -> None:
    """`extend` as one Triton kernel."""
    from regard.decoding.engine.cuda import beam_kernel

    (sentences, width), k = buffers.size[:2], log_p.shape[1]
    padded = lambda n: 1 << (n - 1).bit_length()  # noqa: E731
    candidates, columns = padded(width * k), padded(k)
    constants: dict[str, Any] = {
        "WIDTH": width, "K": k, "CANDIDATES": candidates, "COLS": columns, "SLOTS": padded(width),
        "BLOCK_T": 64, "num_warps": max(1, candidates * columns // 512),
    }  # fmt: skip
    beam_kernel.extend[(sentences,)](
        log_p, best, buffers.position, buffers.limit, buffers.score, buffers.last, buffers.done,
        buffers.tokens, buffers.ended, buffers.ended_score, buffers.ended_row, buffers.ended_at,
        buffers.history, buffers.parents, buffers.past, sentences, buffers.size.length, end,
        **constants,
    )  # fmt: skip


def search(
    engine: CudaEngine, tasks: list[SearchTask], state: CudaDecoderState, first: Tensor, beam: Beam, end: int
) -> None:
    """Run beam search for all tasks; move to smaller buffers when half of the sentences are finished."""
    start, longest = state.position, max(task.max_length for task in tasks)
    k = min(beam.shape().top or 1, engine.vocab)
    backpointers, ids = Backpointers(tasks, beam, longest, engine.token_ids), np.arange(len(tasks))
    buffers = engine.pool.take(engine, len(tasks), beam.size, state.source_length, start + longest)
    try:
        if state.buffers is None:
            buffers.load(state.memory)
        else:
            buffers.copy_from(state.buffers, torch.arange(len(tasks), device=engine.device), start)
        buffers.start_search(first, [task.max_length for task in tasks], start)
        step = 0
        while len(ids):
            count = min(CHECK_EVERY, longest - step)
            for _ in range(count):
                engine.run_on(
                    buffers,
                    (k, end),
                    start + step + count,
                    lambda buffers, length: beam_step(engine, buffers, length, k, end),
                )
            step += count
            if all((cancelled := tasks[i].cancelled) is not None and cancelled() for i in ids.tolist()):
                return  # all are cancelled
            done = buffers.done[: len(ids)].cpu().numpy()
            remaining = np.flatnonzero(~done)
            if 2 * bucket(len(remaining)) <= buffers.size.sentences or not len(remaining):
                backpointers.fetch(buffers, ids, start, step)
                backpointers.finish(buffers, ids, np.flatnonzero(done), start)
                buffers = shrunk(engine, buffers, torch.from_numpy(remaining).to(engine.device), start + step)
                ids = ids[remaining]
    finally:
        engine.pool.release(buffers)


def shrunk(engine: CudaEngine, buffers: Buffers, rows: Tensor, position: int) -> Buffers:
    """Move the remaining sentences into smaller buffers."""
    if not len(rows):
        return buffers
    small = engine.pool.take(engine, len(rows), buffers.size.width, buffers.size.source, buffers.size.length)
    small.continue_search(buffers, rows, position)
    engine.pool.release(buffers)
    return small


class Backpointers:
    """The tokens and backpointers of a search, copied from the GPU, from which hypotheses are read."""

    def __init__(self, tasks: list[SearchTask], beam: Beam, longest: int, token_ids: Any) -> None:
        self.tasks, self.beam, self.token_ids, self.fetched = tasks, beam, token_ids, 0
        self.history = np.zeros((longest, len(tasks), beam.size), np.int32)
        self.parents = np.zeros_like(self.history)

    def fetch(self, buffers: Buffers, ids: Any, start: int, step: int) -> None:
        """Copy the steps since the last call, up to `step`, of the sentences in the buffers."""
        steps = slice(start + self.fetched, start + step)
        self.history[self.fetched : step, ids] = buffers.history[steps, : len(ids)].cpu().numpy()
        if self.beam.size > 1:  # else all are 0
            self.parents[self.fetched : step, ids] = buffers.parents[steps, : len(ids)].cpu().numpy()
        self.fetched = step

    @gc_paused()
    def finish(self, buffers: Buffers, ids: Any, done: Any, start: int) -> None:
        """Store the hypotheses of finished sentences: those that ended, and those that the length limit cut
        off.
        """
        n, ids, width = len(ids), ids[done], self.beam.size
        to_host = lambda x: x[:n].cpu().numpy()[done]  # noqa: E731
        count, last = to_host(buffers.ended)[:, None], to_host(buffers.last)
        # Columns: 2 · width places of hypotheses that ended, then the rows; up to `width` are filled with the
        # best rows that were cut off.
        is_cut = (last > -np.inf) & (np.cumsum(last > -np.inf, 1) <= width - count)
        valid = np.hstack([np.arange(2 * width) < count, is_cut])
        ended = np.broadcast_to(np.arange(3 * width) < 2 * width, valid.shape)
        slot = np.broadcast_to(np.arange(width), last.shape)
        log_p = np.hstack([to_host(buffers.ended_score)[:, :-1], last])
        row = np.hstack([to_host(buffers.ended_row)[:, :-1], slot])
        limit = np.broadcast_to(to_host(buffers.limit)[:, None], last.shape)
        length = np.hstack([to_host(buffers.ended_at)[:, :-1], limit]) - start
        score = np.full_like(log_p, -np.inf)
        score[valid] = self.beam.scores(log_p[valid], (length + ended)[valid])
        best = np.argsort(-score, axis=1, kind="stable")[:, :width]  # as `Beam.sort`
        found = np.take_along_axis(valid, best, 1)
        columns = [np.take_along_axis(x, best, 1)[found] for x in (row, length, log_p, score, ended)]
        tokens = self._read(np.repeat(ids, found.sum(1)), *columns[:2])
        # As lists: reading an array number by number is slow.
        hypotheses = list(map(Hypothesis, tokens, *(column.tolist() for column in columns[2:])))
        stops = np.cumsum(found.sum(1)).tolist()
        for i, first, stop in zip(ids.tolist(), [0, *stops], stops, strict=False):
            if first == stop:
                raise OptionError(
                    f"the model gives sentence {self.tasks[i].index + 1} no output with a finite score; "
                    "check the weights for NaN"
                )
            self.tasks[i].hypotheses = hypotheses[first:stop]

    def _read(self, ids: Any, rows: Any, lengths: Any) -> list[list[int]]:
        """Follow the backpointers; return the tokens of each hypothesis."""
        longest, width = int(lengths.max(initial=0)), self.beam.size
        tokens = np.empty((len(ids), longest), np.int32)
        index = ids * width + rows
        for step in range(longest - 1, -1, -1):
            tokens[:, step] = self.history[step].take(index)
            if width > 1:
                rows = np.where(lengths > step, self.parents[step].take(index), rows)
                index = ids * width + rows
        texts = self.token_ids[tokens].tolist()
        for text, n in zip(texts, lengths.tolist(), strict=True):
            del text[n:]
        return texts
