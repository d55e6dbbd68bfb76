"""`embed`: texts in, vectors out, in batches by length, with one worker per core."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import BOS, EOS
from regard.decoding.batching import default_workers, evaluation_mode, progress_bar, run_workers
from regard.decoding.limits import Limits
from regard.errors import OptionError
from regard.files.progress import Progress
from regard.models.default import as_model
from regard.models.embedder import Embedder

BATCH_TOKENS = {"cpu": 2048, "cuda": 1 << 16}  # about what a CPU's cache holds
TOKENIZED = {"cpu": 1 << 16, "cuda": 1 << 13}  # texts tokenized at a time; a GPU computes the part before

Vectors = NDArray[np.float32]


def embed(
    texts: str | Sequence[str],
    model: Any = None,
    *,
    batch_tokens: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> Vectors:
    """Embed a text, (width,), or a list of texts, (texts, width), as vectors of length 1.

    >>> regard.embed(["a cat on a mat", "a kitten on the rug"], "minilm").shape  # doctest: +SKIP
    (2, 384)

    A text has the same vector, up to the last bits, in any batch.

    Args:
        texts: one text or a list of texts. A text of more than `Embedder.longest` tokens is truncated.
        model: `minilm`, a model folder, or a loaded model with an encoder (see `Embedder.of`). By default the
            folder in REGARD_MODEL. A name or folder runs on the CPU in float32; for a GPU or half precision,
            load it first: `regard.models.Embedder.load("minilm", "cuda", "bfloat16")`.
        batch_tokens: maximum size of a batch; by default as fits the device.
        workers: number of batches computed in parallel; by default one per core for enough work on a CPU.
        progress: show a progress bar.
    """
    for name, value in (("batch_tokens", batch_tokens), ("workers", workers)):
        if value is not None:
            arguments.integer(name, value)
    (texts, single), progress = arguments.one_or_more("texts", texts), arguments.flag("progress", progress)
    embedder = Embedder.of(as_model(model, "embed"))
    with evaluation_mode(embedder), torch.inference_mode():
        out = np.empty((len(texts), embedder.width), np.float32)
        with progress_bar(progress, len(texts), "embedding", "texts") as bar:
            limits = Limits(batch_tokens=batch_tokens, workers=workers)
            run = _run_ahead if embedder.device.type == "cuda" and workers is None else _run
            run(embedder, texts, out, limits, bar)
    return out[0] if single else out


def _parts(
    embedder: Embedder, texts: Sequence[str], out: Vectors
) -> Iterator[tuple[list[list[int]], Vectors]]:
    """The token ids of some texts at a time, and the rows of `out` for them."""
    size = TOKENIZED.get(embedder.device.type, 1 << 16)
    for start in range(0, len(texts), size):
        part = slice(start, start + size)
        yield _encode(embedder, texts[part]), out[part]


def _encode(embedder: Embedder, texts: Sequence[str]) -> list[list[int]]:
    """Return token ids with BOS and EOS, truncated to the model's maximum."""
    tokenizer: Any = getattr(embedder, "source_tokenizer", None)
    if tokenizer is None:
        raise OptionError("this model has no tokenizer; load it from a folder with regard.load")
    room = embedder.longest - 1 - embedder.prepend_bos
    first = [BOS] if embedder.prepend_bos else []
    return [[*first, *ids[:room], EOS] for ids in tokenizer.encode_batch(texts)]


def _run(embedder: Embedder, texts: Sequence[str], out: Vectors, limits: Limits, bar: Progress) -> None:
    for rows, vectors in _parts(embedder, texts, out):
        _run_part(embedder, rows, vectors, limits, bar)


def _run_part(embedder: Embedder, rows: list[list[int]], out: Vectors, limits: Limits, bar: Progress) -> None:
    """Compute batches one after another, or several at a time in threads."""
    workers = limits.workers or default_workers(embedder, sum(map(len, rows)))
    waiting, stop = deque(_batches(rows, _batch_tokens(embedder, limits))), threading.Event()

    def work() -> None:
        with torch.inference_mode():
            while not stop.is_set():
                try:
                    batch = waiting.popleft()
                except IndexError:
                    return
                out[batch] = _vectors(embedder, [rows[i] for i in batch]).cpu().numpy()
                bar.advance(len(batch))

    if workers <= 1:
        work()
    else:
        run_workers(work, workers, stop)


def _run_ahead(embedder: Embedder, texts: Sequence[str], out: Vectors, limits: Limits, bar: Progress) -> None:
    """Compute on a GPU, and tokenize the next part meanwhile: nothing waits for a part before the next one
    is queued.
    """
    queued: list[Callable[[], None]] = []
    for rows, vectors in _parts(embedder, texts, out):
        batches = _batches(rows, _batch_tokens(embedder, limits))
        before, queued = queued, [_queue(embedder, rows, batch, vectors, bar) for batch in batches]
        for finish in before:
            finish()
    for finish in queued:
        finish()


def _queue(
    embedder: Embedder, rows: list[list[int]], batch: list[int], out: Vectors, bar: Progress
) -> Callable[[], None]:
    """Queue a batch on the GPU; the result waits for it and writes its vectors to `out`."""
    vectors = _vectors(embedder, [rows[i] for i in batch]).to("cpu", non_blocking=True)  # not there yet
    done = torch.cuda.Event() if embedder.device.type == "cuda" else None
    if done is not None:
        done.record(torch.cuda.current_stream(embedder.device))

    def finish() -> None:
        if done is not None:
            done.synchronize()
        out[batch] = vectors.numpy()
        bar.advance(len(batch))

    return finish


def _batch_tokens(embedder: Embedder, limits: Limits) -> int:
    return limits.batch_tokens or BATCH_TOKENS.get(embedder.device.type, 2048)


def _batches(rows: list[list[int]], batch_tokens: int) -> list[list[int]]:
    """Return indices of rows of similar length, longest first; a padded batch has at most `batch_tokens`
    tokens.
    """
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        count = max(1, batch_tokens // len(rows[order[start]]))
        batches.append(order[start : start + count])
        start += count
    return batches


def _vectors(embedder: Embedder, rows: list[list[int]]) -> Tensor:
    """Vectors of a batch on the model's device, (rows, width), float32."""
    tokens, lengths = _pad(rows)
    unpadded = bool((lengths == lengths[0]).all())  # needs no mask
    tokens, lengths = (_to_device(x, embedder.device) for x in (tokens, lengths))
    return embedder.encode(tokens, None if unpadded else lengths).float()


def _pad(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Tokens (rows, longest), zeros after the end of each row, and lengths (rows,)."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    tokens = np.zeros((len(rows), lengths.max()), np.int64)
    real = np.arange(tokens.shape[1]) < lengths[:, None]
    tokens[real] = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    return torch.from_numpy(tokens), torch.from_numpy(lengths)


def _to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy to a GPU without waiting for what it computes, which takes pinned memory."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
