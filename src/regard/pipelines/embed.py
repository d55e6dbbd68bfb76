"""`embed`: texts in, vectors out, in batches by length, with one worker per core."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard import arguments
from regard.data.tokenizer import BOS, EOS
from regard.decoding.batching import default_workers, evaluation_mode, progress_bar, run_workers
from regard.decoding.limits import Limits
from regard.errors import OptionError
from regard.files.progress import Progress
from regard.models.default import as_model
from regard.models.embedder import Embedder

BATCH_TOKENS = {"cpu": 2048, "cuda": 1 << 16}  # about what a CPU's cache holds
TOKENIZED = 1 << 16  # texts that are tokenized at a time

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
        model: a model folder, or a loaded model with an encoder (see `Embedder.of`). By default the folder in
            REGARD_MODEL.
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
            for start in range(0, len(texts), TOKENIZED):
                part = slice(start, start + TOKENIZED)
                _run(embedder, _encode(embedder, texts[part]), out[part], limits, bar)
    return out[0] if single else out


def _encode(embedder: Embedder, texts: Sequence[str]) -> list[list[int]]:
    """Return token ids with BOS and EOS, truncated to the model's maximum."""
    tokenizer: Any = getattr(embedder, "source_tokenizer", None)
    if tokenizer is None:
        raise OptionError("this model has no tokenizer; load it from a folder with regard.load")
    room = embedder.longest - 1 - embedder.prepend_bos
    first = [BOS] if embedder.prepend_bos else []
    return [[*first, *ids[:room], EOS] for ids in tokenizer.encode_batch(texts)]


def _run(
    embedder: Embedder,
    rows: list[list[int]],
    out: Vectors,
    limits: Limits,
    bar: Progress,
) -> None:
    workers = limits.workers or default_workers(embedder, sum(map(len, rows)))
    batch_tokens = limits.batch_tokens or BATCH_TOKENS.get(embedder.device.type, 2048)
    waiting, stop = deque(_batches(rows, batch_tokens)), threading.Event()

    def work() -> None:
        with torch.inference_mode():
            while not stop.is_set():
                try:
                    batch = waiting.popleft()
                except IndexError:
                    return
                out[batch] = _vectors(embedder, [rows[i] for i in batch])
                bar.advance(len(batch))

    if workers <= 1:
        work()
    else:
        run_workers(work, workers, stop)


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


def _vectors(embedder: Embedder, rows: list[list[int]]) -> Vectors:
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
    unpadded = bool((lengths == lengths[0]).all())  # needs no mask
    device = embedder.device
    return embedder.encode(tokens.to(device), None if unpadded else lengths.to(device)).float().cpu().numpy()
