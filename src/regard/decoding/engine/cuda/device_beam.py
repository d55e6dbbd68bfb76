"""A whole beam search on the device, without a word to the host but for now and then: who is done?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.data.tokenizer import PAD
from regard.decoding.beam import Beam
from regard.decoding.engine.cuda.buffers import Buffers, bucket
from regard.decoding.engine.cuda.packed_weights import CHUNK
from regard.decoding.strategy import Hypothesis, SearchTask
from regard.errors import OptionError

if TYPE_CHECKING:
    from regard.decoding.engine.cuda.cuda_engine import CudaEngine, DecoderState

EVERY = 8  # steps between two looks at who is done: a look waits for the GPU


def grow(engine: CudaEngine, board: Buffers, length: int, k: int, end: int) -> None:
    """A step of a plain beam, as `Search` and `Beam.choose` make it on the host."""
    groups, width = board.size[:2]
    log_p, words = engine.best_words(board, length, k)
    total = (board.score[..., None] + log_p.view(groups, width, k)).flatten(1)
    word, order = words.view(groups, -1), torch.zeros_like(total, dtype=torch.long)
    if total.shape[1] > 1:
        total, order = torch.sort(total, stable=True, dim=1, descending=True)
        total, order = total[:, : 2 * width], order[:, : 2 * width]
        word = word.gather(1, order)
    row = order // k
    alive, ends = total > -torch.inf, word == end
    over = alive & ends
    over[:, width:].fill_(False)  # an end counts when it is among the best `width`
    on = alive & ~ends
    rank = on.cumsum(1)
    on = on & (rank <= width)
    place = (board.ended[:, None] + over.cumsum(1) - 1).masked_fill(~over, 2 * width)
    for held, given in (
        (board.found_score, total),
        (board.found_row, row),
        (board.found_at, board.at.expand_as(row)),
    ):
        held.scatter_(1, place, given)
    board.ended.add_(over.sum(1))
    place = (rank - 1).masked_fill(~on, width)

    def chosen(given: Tensor, none: float) -> Tensor:
        return given.new_full((groups, width + 1), none).scatter_(1, place, given)[:, :width]

    go_on(board, length, chosen(total, -torch.inf), chosen(word, PAD), chosen(row, 0), on.any(1))


def go_on(board: Buffers, length: int, score: Tensor, word: Tensor, row: Tensor, any_on: Tensor) -> None:
    """The rows become those chosen; sentences that are done stay as they were found."""
    board.last.copy_(torch.where(board.done[:, None], board.last, score))
    board.done.logical_or_((board.ended >= board.size.width) | (board.at + 1 >= board.limit) | ~any_on)
    board.score.copy_(score.masked_fill(board.done[:, None], -torch.inf))
    board.tokens.copy_(word)
    board.words.index_copy_(0, board.at, word[None].to(torch.int32))
    board.parents.index_copy_(0, board.at, row[None].to(torch.int16))
    if board.size.width > 1:
        past = board.past[:, :, :length]
        past.copy_(past.gather(1, row[..., None].expand(-1, -1, length)))
    board.at.add_(1)


def search(
    engine: CudaEngine, tasks: list[SearchTask], carried: DecoderState, first: Tensor, beam: Beam, end: int
) -> None:
    """Find the texts of all tasks, on smaller boards as they get fewer."""
    start, longest, k = (
        carried.at,
        max(task.max_length for task in tasks),
        min(beam.shape().top or 1, engine.vocab),
    )
    trail, ids = Backpointers(tasks, beam, longest), np.arange(len(tasks))
    board = engine.boards.take(engine, len(tasks), beam.size, carried.source, start + longest)
    try:
        if carried.board is None:
            board.load(carried.memory)
        else:
            board.follow(carried.board, torch.arange(len(tasks), device=engine.device), start)
        board.begin(first, [task.max_length for task in tasks], start)
        step = 0
        while len(ids):
            count = min(EVERY, longest - step)
            for _ in range(count):
                engine.run_on(
                    board,
                    (k, end),
                    start + step + count,
                    lambda board, length: grow(engine, board, length, k, end),
                )
            step += count
            if all((cancelled := tasks[i].cancelled) is not None and cancelled() for i in ids.tolist()):
                return  # nobody waits for any of them
            done = board.done[: len(ids)].cpu().numpy()
            left = np.flatnonzero(~done)
            if 2 * bucket(len(left)) <= board.size.groups or not len(left):
                trail.fetch(board, ids, start, step)
                trail.finish(board, ids, np.flatnonzero(done), start)
                board = narrowed(engine, board, torch.from_numpy(left).to(engine.device), start + step)
                ids = ids[left]
    finally:
        engine.boards.give(board)


def narrowed(engine: CudaEngine, board: Buffers, rows: Tensor, at: int) -> Buffers:
    """A smaller board for those who are left."""
    if not len(rows):
        return board
    small = engine.boards.take(engine, len(rows), board.size.width, board.size.source, board.size.length)
    small.narrow(board, rows, at)
    engine.boards.give(board)
    return small


class Backpointers:
    """What a whole search wrote, fetched from the boards it was on, and the texts read back from it."""

    def __init__(self, tasks: list[SearchTask], beam: Beam, longest: int) -> None:
        self.tasks, self.beam, self.known = tasks, beam, 0
        self.words = np.zeros((longest, len(tasks), beam.size), np.int32)
        self.parents = np.zeros_like(self.words)

    def fetch(self, board: Buffers, ids: Any, start: int, step: int) -> None:
        """Steps from where it was fetched last up to `step`, of the sentences on the board."""
        here = slice(start + self.known, start + step)
        self.words[self.known : step, ids] = board.words[here, : len(ids)].cpu().numpy()
        self.parents[self.known : step, ids] = board.parents[here, : len(ids)].cpu().numpy()
        self.known = step

    def finish(self, board: Buffers, ids: Any, done: Any, start: int) -> None:
        """The texts of sentences that are done: those that ended, and those that the limit cut off in their stead."""
        there, ids, width = torch.from_numpy(done), ids[done], self.beam.size
        host = lambda x: x.index_select(0, there.to(x.device)).cpu().numpy()  # noqa: E731
        count, score, row = host(board.ended), host(board.found_score)[:, :-1], host(board.found_row)[:, :-1]
        length, last = host(board.found_at)[:, :-1] - start, host(board.last)
        group, nth = np.nonzero(np.arange(2 * width) < count[:, None])
        cut_group, slot = np.nonzero(
            (last > -np.inf) & (np.cumsum(last > -np.inf, 1) <= width - count[:, None])
        )
        limit = np.array([self.tasks[i].max_length for i in ids.tolist()], np.int64)
        groups, ended = (
            np.concatenate([group, cut_group]),
            np.arange(len(group) + len(cut_group)) < len(group),
        )
        lengths = np.concatenate([length[group, nth], limit[cut_group]])
        texts = self._read(ids[groups], np.concatenate([row[group, nth], slot]), lengths)
        log_p = np.concatenate([score[group, nth], last[cut_group, slot]])
        columns = (
            ids[groups],
            texts,
            lengths,
            log_p,
            ended,
        )  # as lists: a number at a time out of an array is slow
        for i, text, n, p, whole in zip(*(column.tolist() for column in columns), strict=True):
            self.tasks[i].hypotheses.append(Hypothesis(text[:n], p, self.beam.score(p, n + whole), whole))
        for i in ids.tolist():
            if not self.tasks[i].hypotheses:
                raise OptionError(
                    f"no text of sentence {self.tasks[i].index + 1} has a probability; are the weights NaN?"
                )
            self.tasks[i].hypotheses = self.beam.sort(self.tasks[i].hypotheses)

    def _read(self, ids: Any, rows: Any, lengths: Any) -> Any:
        """Words from the last to the first: (texts, longest)."""
        found = np.zeros((len(ids), int(lengths.max(initial=0))), np.int64)
        for step in range(found.shape[1] - 1, -1, -1):
            on = lengths > step
            found[on, step] = self.words[step, ids[on], rows[on]]
            rows[on] = self.parents[step, ids[on], rows[on]]
        return found


def top(log_p: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row, best first. They lie in the k columns with the greatest maxima, which saves sorting all: a row is
    written as CHUNK lines, one below the other.
    """
    if k == 1:
        return log_p.max(-1, keepdim=True)
    lines = log_p.unflatten(-1, (CHUNK, -1))
    columns = lines.shape[2]
    if k >= columns:
        return log_p.topk(k, -1)
    which = lines.amax(1).topk(k, -1).indices  # (rows, k)
    found, at = lines.gather(2, which[:, None].expand(-1, CHUNK, -1)).flatten(1).topk(k, -1)
    return found, at // k * columns + which.gather(1, at % k)
