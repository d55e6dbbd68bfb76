"""The engine on a GPU as a writer: fixed shapes, steps recorded once as CUDA graphs and replayed, whole beams on the device.

A step of a small model is a hundred kernels, each shorter than its launch; a recorded step is one launch. What changes from step
to step (words, position, scores, who descends from whom) therefore lies in the tensors of a `Board`, at fixed addresses, and
sizes are rounded up to few. The same code runs without recordings on any device, which is how it is tested where no GPU is.

No cache is reordered under a beam: the rows of a sentence share one cache in which each row writes its own place, and a table
of ancestors says which places a row may see. Reading costs what it would cost anyway, and nothing is copied.
"""

from __future__ import annotations

import copy
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.position import Learned
from regard.data.tokenizer import BOS, PAD
from regard.decoding.beam import Beam
from regard.decoding.engine.reading import Shape, Unfit, shape
from regard.decoding.strategy import Hypothesis, Task
from regard.errors import OptionError
from regard.layers.feedforward import ACTIVATIONS

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EVERY = 8  # steps between two looks at who is done: a look waits for the GPU
FEWEST = 8  # sizes start here, and are multiples of it: kernels like that
FIRST = 64  # words there is room for when nobody says how many will come
CHUNK = 64  # words whose maximum is found first when the best of all are sought
Map = tuple[Tensor, Tensor | None]
Body = Callable[[], Any]
Runner = Callable[[dict[Any, Any], Any, Body], Any]  # recordings, the key of one, what to run


# ------------------------------------------------------------------------------------------------ which models, which precision
def on_cuda(model: Any, precision: str = "auto") -> Any:
    """The engine for a model that lies on a GPU, or the model itself where it does not fit. auto: as the weights are."""
    if precision not in ("auto", *PRECISIONS):
        print(f"regard: float32 instead of {precision}: a GPU computes in {' or '.join(PRECISIONS)} here", file=sys.stderr)
        precision = "float32"
    try:
        return engine(model, PRECISIONS.get(precision))
    except Unfit as reason:
        if precision == "bfloat16":
            print(f"regard: float32 instead of {precision}: {reason}", file=sys.stderr)
        return model


# ---------------------------------------------------------------------------------------------------------------- recordings
class Recorded(ABC):
    """Runs a step by its key: in earnest the first time, recorded at the second, replayed from then on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, kept: dict[Any, Any], key: Any, body: Body) -> Any:
        if key not in kept:
            with self._lock:
                found = self.warm(body)
            kept[key] = None
            return found
        if kept[key] is None:
            with self._lock:
                kept[key] = self.record(body)
        replay, found = kept[key]
        replay()
        return found

    def warm(self, body: Body) -> Any:
        return body()

    @abstractmethod
    def record(self, body: Body) -> tuple[Callable[[], None], Any]:
        """How to repeat the body, and what it gives, without having run it in effect."""


class Graphs(Recorded):
    """CUDA graphs that share their memory: only one runs at a time, and all that lasts is on a board."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        with torch.cuda.device(device):
            self.pool, self.side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def warm(self, body: Body) -> Any:
        """Beside the main stream, where libraries make what a recording needs."""
        with torch.cuda.device(self.device):
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                found = body()
            torch.cuda.current_stream().wait_stream(self.side)
        return found

    def record(self, body: Body) -> tuple[Callable[[], None], Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            found = body()
        return graph.replay, found


def at_once(kept: dict[Any, Any], key: Any, body: Body) -> Any:
    """No recording: what a CPU does."""
    return body()


# -------------------------------------------------------------------------------------------------------------------- weights
class Layer(NamedTuple):
    """One layer's maps, those of one input joined."""

    qkv: Map
    out: Map
    cross: Map | None
    cross_out: Map | None
    up: Map
    down: Map
    norms: list[nn.Module]


class Weights:
    """A copy of a stack of layers in one type, its maps joined; computes a layer given how attention is done."""

    def __init__(self, part: Any, made: Shape, dtype: torch.dtype) -> None:
        ready = lambda *maps: _joined(maps, dtype)  # noqa: E731
        norm = lambda module: copy.deepcopy(module).to(dtype).requires_grad_(False)  # noqa: E731
        self.layers = [
            Layer(
                ready(x.attention.Wq, x.attention.Wk, x.attention.Wv), ready(x.attention.Wo),
                *((None, None) if x.cross is None else (ready(x.cross.Wq), ready(x.cross.Wo))), ready(x.feed.W1), ready(x.feed.W2),
                [norm(around.norm) for around in (x.around_attention, x.around_cross, x.around_feed) if around is not None],
            )
            for x in part.layers
        ]  # fmt: skip
        self.norm, self.position, self.made = norm(part.norm), part.position, made
        self._places = self.layers[0].qkv[0].new_zeros(0, made.dim)

    def around(self, norm: nn.Module, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(norm(x)) if self.made.place == "pre" else norm(x + sublayer(x))

    def layer(
        self, layer: Layer, x: Tensor, own: Callable[[Tensor], Tensor], cross: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """x (…, dim); `own` takes queries, keys and values side by side, `cross` queries; both give the heads side by side."""
        norms = iter(layer.norms)
        x = self.around(next(norms), x, lambda x: F.linear(own(F.linear(x, *layer.qkv)), *layer.out))
        if layer.cross is not None and layer.cross_out is not None and cross is not None:
            to, back, look = layer.cross, layer.cross_out, cross
            x = self.around(next(norms), x, lambda x: F.linear(look(F.linear(x, *to)), *back))
        return self.around(next(norms), x, lambda x: F.linear(self._active(F.linear(x, *layer.up)), *layer.down))

    def _active(self, h: Tensor) -> Tensor:
        if self.made.activation != "swiglu":
            return ACTIVATIONS[self.made.activation](h)
        a, b = h.chunk(2, -1)
        return F.silu(a) * b

    def places(self, length: int) -> Tensor:
        """What is added to the first words, (length, dim); zeros behind the end of a learned table, where nobody looks."""
        if len(self._places) < length:
            found = self._places.new_zeros(1, bucket(length), self.made.dim)
            known = min(found.shape[1], self.position.maxlen) if isinstance(self.position, Learned) else found.shape[1]
            found[:, :known] = self.position(found[:, :known])
            self._places = found[0]
        return self._places[:length]


def _joined(maps: tuple[nn.Linear, ...], dtype: torch.dtype) -> Map:
    bias = None if maps[0].bias is None else torch.cat([m.bias.detach() for m in maps]).to(dtype)
    return torch.cat([m.weight.detach() for m in maps]).to(dtype), bias


def _readout(model: Any, dtype: torch.dtype) -> Map:
    """The last map, filled up to whole chunks of words that nobody can write; nor can anybody write PAD and BOS."""
    words = model.output.words
    weight = words.weight.detach().to(dtype)
    more = -len(weight) % CHUNK
    bias = weight.new_zeros(len(weight)) if words.bias is None else words.bias.detach().to(dtype).clone()
    bias[[PAD, BOS]] = -torch.inf
    return F.pad(weight, (0, 0, 0, more)), F.pad(bias, (0, more), value=-torch.inf)


# ---------------------------------------------------------------------------------------------------------------------- boards
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


class Board:
    """What a batch carries from step to step, at fixed addresses, and the steps recorded on it."""

    ROWS = ("tokens", "past", "score", "last", "ended", "done", "limit", "found_score", "found_row", "found_at")

    def __init__(self, engine: CudaEngine, size: Size) -> None:
        made, layers = engine.made, len(engine.decoder.layers)
        groups, width, source, length = self.size = size
        new = lambda *shape, dtype=engine.dtype: torch.zeros(shape, dtype=dtype, device=engine.device)  # noqa: E731
        heads = (made.heads, made.width)
        self.cache = new(layers, 2, groups, heads[0], length, width, heads[1])  # a row writes to its own place of each step
        self.cross = new(layers, 2, groups, heads[0], source, heads[1])
        self.hidden = new(groups, 1, 1, source)  # −inf at padding
        self.places = engine.decoder.places(length)
        self.at = new(1, dtype=torch.long)  # words so far
        self.tokens = new(groups, width, dtype=torch.long)
        self.past = new(groups, width, length, dtype=torch.int16)  # the row that wrote each word of this row's text
        self.steps = torch.arange(length, device=engine.device)
        self.slots = torch.arange(width, device=engine.device, dtype=torch.int16)
        # Of a whole search: log p of rows, what was written by whom, texts that ended.
        self.score, self.last = (new(groups, width, dtype=torch.float64) for _ in range(2))
        self.ended, self.limit = (new(groups, dtype=torch.long) for _ in range(2))
        self.done = new(groups, dtype=torch.bool)
        self.words, self.parents = new(length, groups, width, dtype=torch.int32), new(length, groups, width, dtype=torch.int16)
        self.found_score = new(groups, 2 * width + 1, dtype=torch.float64)  # a last column for what is no text
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

    def follow(self, other: Board, rows: Tensor, at: int) -> None:
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

    def narrow(self, other: Board, rows: Tensor, at: int) -> None:
        """Go on with a whole search, of these sentences alone."""
        self.follow(other, rows, at)
        self.done.fill_(True)
        self.score.fill_(-torch.inf)
        for name in self.ROWS:
            getattr(self, name)[: len(rows)].copy_(getattr(other, name).index_select(0, rows))


class Boards:
    """Boards by size; those that nobody uses wait, with their recordings, as long as there is memory for it."""

    def __init__(self, device: torch.device) -> None:
        self._free: list[Board] = []
        self._lock = threading.Lock()
        self._most = torch.cuda.get_device_properties(device).total_memory // 3 if device.type == "cuda" else 0

    def take(self, engine: CudaEngine, groups: int, width: int, source: int, length: int) -> Board:
        size = Size(bucket(groups), width, bucket(source) if source else 0, bucket(length))
        with self._lock:
            at = next((i for i, board in enumerate(self._free) if board.size == size), None)
            board = None if at is None else self._free.pop(at)
        board = board or self._new(engine, size)
        board.clear()
        return board

    def give(self, board: Board) -> None:
        with self._lock:
            self._free.append(board)
            while self._free and sum(b.bytes for b in self._free) > self._most:
                self._free.pop(0)

    def _new(self, engine: CudaEngine, size: Size) -> Board:
        try:
            return Board(engine, size)
        except torch.OutOfMemoryError:  # what waits can be made again
            with self._lock:
                self._free.clear()
            torch.cuda.empty_cache()
            return Board(engine, size)


class Memory(NamedTuple):
    """Keys and values of source sentences for all layers of the decoder, (layers, 2, batch, heads, S, width)."""

    cross: Tensor
    hidden: Tensor  # (batch, 1, 1, S), −inf at padding

    def reorder(self, rows: Tensor) -> Memory:
        return Memory(self.cross.index_select(2, rows), self.hidden.index_select(0, rows))


class Carried:
    """What the one search carries: rows of a board, which is found at the first word. Like torch's, it is changed by each step."""

    def __init__(self, engine: CudaEngine, memory: Memory | None, rows: int) -> None:
        self.engine, self.memory, self.rows = engine, memory, rows
        self.board: Board | None = None
        self.at = 0

    def __del__(self) -> None:
        if self.board is not None:
            self.engine.boards.give(self.board)

    @property
    def source(self) -> int:
        if self.board is not None:
            return self.board.size.source
        return 0 if self.memory is None else self.memory.cross.shape[4]

    def ready(self) -> Board:
        """The board, with room for one more word."""
        if self.board is None:
            self.board = self.engine.boards.take(self.engine, self.rows, 1, self.source, FIRST)
            self.board.load(self.memory)
            self.memory = None
        elif self.at >= self.board.size.length:
            self._move(torch.arange(self.rows, device=self.engine.device), 2 * self.at)
        return self.board

    @torch.inference_mode()
    def reorder(self, rows: Tensor) -> Carried:
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


# ---------------------------------------------------------------------------------------------------------------------- writer
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
        self.vocab, self.scale = model.output.words.out_features, model.target.scale
        self.target = model.target.table.weight.detach().to(self.dtype)
        self.readout = _readout(model, self.dtype)
        with torch.no_grad():
            self.decoder = Weights(model.decoder, self.made, self.dtype)
        self._seen, self._hidden = (torch.full((), x, dtype=self.dtype, device=self.device) for x in (0.0, -torch.inf))
        self._run = run or (Graphs(self.device) if self.device.type == "cuda" else at_once)
        self.boards = Boards(self.device)

    def start(self, memory: Memory | None, first: Tensor) -> Carried:
        return Carried(self, memory, len(first))

    @torch.inference_mode()
    def step(self, tokens: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        """One more word of each row → scores of the next, (rows, vocabulary)."""
        scores = self._advance(tokens, carried, "scores", self._scores)
        return scores[: carried.rows, : self.vocab].clone(), carried

    @torch.inference_mode()
    def best(self, tokens: Tensor, carried: Carried, k: int) -> tuple[Tensor, Tensor, Carried]:
        """One more word of each row → log p and numbers of the k best next words, (rows, at most k), best first."""
        k = min(k, self.vocab)
        log_p, words = self._advance(tokens, carried, ("best", k), lambda board, length: self._best(board, length, k))
        return log_p[: carried.rows].clone(), words[: carried.rows].clone(), carried

    def read(self, tokens: Tensor, carried: Carried) -> Carried:
        """Words that are given, (rows, T): the state behind them."""
        for column in tokens.unbind(1):
            self.best(column, carried, 1)
        return carried

    def _advance(self, tokens: Tensor, carried: Carried, key: Any, body: Callable[[Board, int], Any]) -> Any:
        """What the body gives lies where the next step will write, so it is copied."""
        board = carried.ready()
        board.tokens[: carried.rows, 0].copy_(tokens)
        carried.at += 1

        def whole(board: Board, length: int) -> Any:
            found = body(board, length)
            board.at.add_(1)
            return found

        return self._on(board, key, carried.at, whole)

    def _on(self, board: Board, key: Any, words: int, body: Callable[[Board, int], Any]) -> Any:
        """Run a step in which at most so many words are seen."""
        length = min(bucket(words), board.size.length)

        def whole() -> Any:
            with _kernels(self.device):
                return body(board, length)

        return self._run(board.recordings, (key, length), whole)

    # ---------------------------------------------------------------------------------- one step; nothing here may wait for a value
    def _features(self, board: Board, length: int) -> Tensor:
        """The words on the board taken in → features of the next, (rows, dim). Only the first `length` places are looked at."""
        groups, width = board.size[:2]
        shape = (groups, width, -1, self.made.heads, self.made.width)
        x = torch.add(board.places.index_select(0, board.at), F.embedding(board.tokens.flatten(), self.target), alpha=self.scale)
        sight = self._sight(board, length)
        for i, layer in enumerate(self.decoder.layers):

            def own(qkv: Tensor, cache: Tensor = board.cache[i]) -> Tensor:
                qkv = qkv.view(shape).permute(2, 0, 3, 1, 4)  # (3, groups, heads, width, dim of a head)
                cache.index_copy_(3, board.at, qkv[1:, :, :, None])
                k, v = cache[:, :, :, :length].flatten(3, 4)
                return F.scaled_dot_product_attention(qkv[0], k, v, sight).transpose(1, 2).reshape(groups * width, -1)

            def cross(q: Tensor, memory: Tensor = board.cross[i]) -> Tensor:
                q = q.view(shape)[:, :, 0].transpose(1, 2)
                found = F.scaled_dot_product_attention(q, memory[0], memory[1], board.hidden.expand(-1, -1, width, -1))
                return found.transpose(1, 2).reshape(groups * width, -1)

            x = self.decoder.layer(layer, x, own, cross if board.size.source else None)
        return self.decoder.norm(x)

    def _sight(self, board: Board, length: int) -> Tensor:
        """0 where a row may look, −inf elsewhere, (groups or 1, 1, width, length · width): at the words of its own text."""
        seen = board.steps[:length] <= board.at
        if board.size.width > 1:
            board.past.index_copy_(2, board.at, board.slots[:, None].expand(len(board.past), -1, 1))
            seen = ((board.past[:, :, :length, None] == board.slots) & seen[:, None]).flatten(2)[:, None]
        else:
            seen = seen[None, None, None]
        return torch.where(seen, self._seen, self._hidden)

    def _scores(self, board: Board, length: int) -> Tensor:
        return F.linear(self._features(board, length), *self.readout)

    def _best(self, board: Board, length: int, k: int) -> tuple[Tensor, Tensor]:
        """log p and numbers of the best words of each row, (rows, k)."""
        return top(torch.log_softmax(self._scores(board, length), -1, dtype=_exact(self.dtype)), k)

    def _grow(self, board: Board, length: int, k: int, end: int) -> None:
        """A step of a plain beam, as `Search` and `Beam.choose` make it on the host."""
        groups, width = board.size[:2]
        log_p, words = self._best(board, length, k)
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
        for held, given in ((board.found_score, total), (board.found_row, row), (board.found_at, board.at.expand_as(row))):
            held.scatter_(1, place, given)
        board.ended.add_(over.sum(1))
        place = (rank - 1).masked_fill(~on, width)
        chosen = lambda given, none: given.new_full((groups, width + 1), none).scatter_(1, place, given)[:, :width]  # noqa: E731
        self._go_on(board, length, chosen(total, -torch.inf), chosen(word, PAD), chosen(row, 0), on.any(1))

    def _go_on(self, board: Board, length: int, score: Tensor, word: Tensor, row: Tensor, any_on: Tensor) -> None:
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

    # ----------------------------------------------------------------------------------------------------------- a whole search
    @torch.inference_mode()
    def search(self, tasks: list[Task], carried: Carried, first: Tensor, beam: Beam, end: int) -> None:
        """Find the texts of all tasks by a plain beam, without a word to the host but for now and then: who is done?"""
        start, longest, k = carried.at, max(task.limit for task in tasks), min(beam.shape().top or 1, self.vocab)
        trail, ids = Trail(tasks, beam, longest), np.arange(len(tasks))
        board = self.boards.take(self, len(tasks), beam.size, carried.source, start + longest)
        try:
            if carried.board is None:
                board.load(carried.memory)
            else:
                board.follow(carried.board, torch.arange(len(tasks), device=self.device), start)
            board.begin(first, [task.limit for task in tasks], start)
            step = 0
            while len(ids):
                count = min(EVERY, longest - step)
                for _ in range(count):
                    self._on(board, (k, end), start + step + count, lambda board, length: self._grow(board, length, k, end))
                step += count
                done = board.done[: len(ids)].cpu().numpy()
                left = np.flatnonzero(~done)
                if 2 * bucket(len(left)) <= board.size.groups or not len(left):
                    trail.fetch(board, ids, start, step)
                    trail.finish(board, ids, np.flatnonzero(done), start)
                    board = self._narrowed(board, torch.from_numpy(left).to(self.device), start + step)
                    ids = ids[left]
        finally:
            self.boards.give(board)

    def _narrowed(self, board: Board, rows: Tensor, at: int) -> Board:
        """A smaller board for those who are left."""
        if not len(rows):
            return board
        small = self.boards.take(self, len(rows), board.size.width, board.size.source, board.size.length)
        small.narrow(board, rows, at)
        self.boards.give(board)
        return small


class CudaTranslator(CudaEngine):
    """An encoder before it."""

    def __init__(self, model: Any, dtype: torch.dtype | None = None, run: Runner | None = None) -> None:
        super().__init__(model, dtype, run)
        self.source = model.source.table.weight.detach().to(self.dtype)
        maps = [linear for layer in model.decoder.layers for linear in (layer.cross.Wk, layer.cross.Wv)]
        with torch.no_grad():
            self.encoder = Weights(model.encoder, self.made, self.dtype)
            self.memories = _joined(tuple(maps), self.dtype)  # keys and values of all layers are one product

    @torch.inference_mode()
    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        """Sentences (batch, S) → memory."""
        source = F.pad(source, (0, -source.shape[1] % FEWEST), value=PAD)
        rows, length = source.shape
        away = torch.arange(length, device=self.device) >= lengths[:, None]
        hidden = torch.where(away, self._hidden, self._seen)[:, None, None]
        x = torch.add(self.encoder.places(length), F.embedding(source, self.source), alpha=self.scale)

        def own(qkv: Tensor) -> Tensor:
            q, k, v = qkv.view(rows, length, 3, self.made.heads, -1).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, hidden).transpose(1, 2).flatten(2)

        with _kernels(self.device):
            for layer in self.encoder.layers:
                x = self.encoder.layer(layer, x, own)
        cross = F.linear(self.encoder.norm(x), *self.memories).view(rows, length, -1, 2, self.made.heads, self.made.width)
        return Memory(cross.permute(2, 3, 0, 4, 1, 5), hidden)


class Trail:
    """What a whole search wrote, fetched from the boards it was on, and the texts read back from it."""

    def __init__(self, tasks: list[Task], beam: Beam, longest: int) -> None:
        self.tasks, self.beam, self.known = tasks, beam, 0
        self.words = np.zeros((longest, len(tasks), beam.size), np.int32)
        self.parents = np.zeros_like(self.words)

    def fetch(self, board: Board, ids: Any, start: int, step: int) -> None:
        """Steps from where it was fetched last up to `step`, of the sentences on the board."""
        here = slice(start + self.known, start + step)
        self.words[self.known : step, ids] = board.words[here, : len(ids)].cpu().numpy()
        self.parents[self.known : step, ids] = board.parents[here, : len(ids)].cpu().numpy()
        self.known = step

    def finish(self, board: Board, ids: Any, done: Any, start: int) -> None:
        """The texts of sentences that are done: those that ended, and those that the limit cut off in their stead."""
        there, ids, width = torch.from_numpy(done), ids[done], self.beam.size
        host = lambda x: x.index_select(0, there.to(x.device)).cpu().numpy()  # noqa: E731
        count, score, row = host(board.ended), host(board.found_score)[:, :-1], host(board.found_row)[:, :-1]
        length, last = host(board.found_at)[:, :-1] - start, host(board.last)
        group, nth = np.nonzero(np.arange(2 * width) < count[:, None])
        cut_group, slot = np.nonzero((last > -np.inf) & (np.cumsum(last > -np.inf, 1) <= width - count[:, None]))
        limit = np.array([self.tasks[i].limit for i in ids.tolist()], np.int64)
        groups, ended = np.concatenate([group, cut_group]), np.arange(len(group) + len(cut_group)) < len(group)
        lengths = np.concatenate([length[group, nth], limit[cut_group]])
        texts = self._read(ids[groups], np.concatenate([row[group, nth], slot]), lengths)
        log_p = np.concatenate([score[group, nth], last[cut_group, slot]])
        columns = (ids[groups], texts, lengths, log_p, ended)  # as lists: a number at a time out of an array is slow
        for i, text, n, p, whole in zip(*(column.tolist() for column in columns), strict=True):
            self.tasks[i].found.append(Hypothesis(text[:n], p, self.beam.rank(p, n + whole), whole))
        for i in ids.tolist():
            if not self.tasks[i].found:
                raise OptionError(f"no text of sentence {self.tasks[i].index + 1} has a probability; are the weights NaN?")
            self.tasks[i].found = self.beam.order(self.tasks[i].found)

    def _read(self, ids: Any, rows: Any, lengths: Any) -> Any:
        """Words from the last to the first: (texts, longest)."""
        found = np.zeros((len(ids), int(lengths.max(initial=0))), np.int64)
        for step in range(found.shape[1] - 1, -1, -1):
            on = lengths > step
            found[on, step] = self.words[step, ids[on], rows[on]]
            rows[on] = self.parents[step, ids[on], rows[on]]
        return found


def top(log_p: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row, best first. They lie in the k chunks with the greatest maxima, which saves sorting all."""
    chunks = log_p.unflatten(-1, (-1, CHUNK))
    if k == 1:
        return log_p.max(-1, keepdim=True)
    if k >= chunks.shape[1]:
        return log_p.topk(k, -1)
    which = chunks.amax(-1).topk(k, -1).indices
    found, at = chunks.gather(1, which[..., None].expand(-1, -1, CHUNK)).flatten(1).topk(k, -1)
    return found, which.gather(1, at // CHUNK) * CHUNK + at % CHUNK


def _exact(dtype: torch.dtype) -> torch.dtype:
    """What probabilities are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@contextmanager
def _kernels(device: torch.device) -> Iterator[None]:
    """On a GPU, torch's kernel that takes any mask; cuDNN would plan anew for each shape."""
    if device.type != "cuda":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True):
        yield
