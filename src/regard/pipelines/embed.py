"""Many texts through an embedder: sorted by length, in batches of so many tokens, a worker for each core."""

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
from regard.errors import OptionError
from regard.files.progress import Progress
from regard.models.default import as_model
from regard.models.embedder import Embedder

BATCH_TOKENS = {"cpu": 2048, "cuda": 1 << 16}  # a CPU's cache holds the states of about so many
PART = 1 << 16  # texts that are tokenised at a time

Vectors = NDArray[np.float32]


def embed(
    texts: str | Sequence[str],
    model: Any = None,
    *,
    batch_tokens: int | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> Vectors:
    """The vector of one text, (width,), or of each of a list, (texts, width), all of length 1.

    >>> regard.embed(["a cat on a mat", "a kitten on the rug"], "runs/embed-tatoeba").shape
    (2, 256)

    `model` is a folder, a loaded model that reads (see `Embedder.of`), or left out for the default (the folder in REGARD_MODEL).
    Of a long text the first tokens are read, as many as `model.longest` says. The same text has the same vector to the last few
    bits, whatever it is batched with.
    """
    for name, value in (("batch_tokens", batch_tokens), ("workers", workers)):
        if value is not None:
            arguments.integer(name, value)
    (texts, one), progress = arguments.one_or_more("texts", texts), arguments.flag("progress", progress)
    embedder = Embedder.of(as_model(model, "embed"))
    with evaluation_mode(embedder), torch.inference_mode():
        out = np.empty((len(texts), embedder.width), np.float32)
        with progress_bar(progress, len(texts), "embedding", "texts") as bar:
            for start in range(0, len(texts), PART):
                part = texts[start : start + PART]
                _run(
                    embedder, _encoded(embedder, part), out[start : start + PART], batch_tokens, workers, bar
                )
    return out[0] if one else out


def _encoded(embedder: Embedder, texts: Sequence[str]) -> list[list[int]]:
    """Token numbers with their ends on, cut to what the model can read."""
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
    batch_tokens: int | None,
    workers: int | None,
    bar: Progress,
) -> None:
    workers = default_workers(embedder, sum(map(len, rows))) if workers is None else workers
    waiting, stop = (
        deque(_batches(rows, batch_tokens or BATCH_TOKENS.get(embedder.device.type, 2048))),
        threading.Event(),
    )

    def work() -> None:
        with torch.inference_mode():
            while not stop.is_set():
                try:
                    picked = waiting.popleft()
                except IndexError:
                    return
                out[picked] = _vectors(embedder, [rows[i] for i in picked])
                bar.advance(len(picked))

    if workers <= 1:
        work()
    else:
        run_workers(work, workers, stop)


def _batches(rows: list[list[int]], room: int) -> list[list[int]]:
    """Numbers of rows of like length, the longest first; a batch padded to its longest row holds at most `room` tokens."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    found: list[list[int]] = []
    start = 0
    while start < len(order):
        count = max(1, room // len(rows[order[start]]))
        found.append(order[start : start + count])
        start += count
    return found


def _vectors(embedder: Embedder, rows: list[list[int]]) -> Vectors:
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
    alike = bool((lengths == lengths[0]).all())  # nothing is padded, so nothing is masked
    device = embedder.device
    return embedder.encode(tokens.to(device), None if alike else lengths.to(device)).float().cpu().numpy()
