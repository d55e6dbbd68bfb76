"""Chunks encoded by other processes, one per core, in the order in which they were handed out.

The workers are fresh processes that import a few small modules and no torch. They are neither forked, which is unsafe once
there are threads, nor started by `multiprocessing`, which would run the user's script a second time. Arrays and texts go
through pipes as plain bytes. A worker ends when its pipe does, so none outlives the process that wanted it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from regard.data.encode_chunk import ChunkEncoder, Encoding, EncodingSettings
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError

MOST = 4  # workers; one process reads for all of them, and each has a memory of words
# `import regard` would load torch. A stand-in package with the same path gives its modules without it.
_BOOT = """
import sys, types
package = types.ModuleType("regard")
package.__path__ = [sys.argv[1]]
sys.modules["regard"] = package
from regard.data.workers import serve
serve()
"""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_all(
    chunks: Iterable[Sequence[Sequence[str]]],
    tokenizers: Sequence[Tokenizer],
    settings: EncodingSettings,
    workers: int,
) -> Iterator[Encoding]:
    """The encoding of every chunk, in order; by this process if `workers` is less than 2."""
    if workers < 2:
        encoder = ChunkEncoder(tokenizers, settings)
        for number, chunk in enumerate(chunks):
            yield encoder.run(chunk, number)
        return
    with contextlib.ExitStack() as stack:
        idle = deque(stack.enter_context(_Worker(tokenizers, settings)) for _ in range(min(workers, MOST)))
        busy: deque[_Worker] = deque()
        for number, chunk in enumerate(chunks):
            if not idle:  # chunks go around, so the one that has worked longest has the next result
                yield busy[0].receive()
                idle.append(busy.popleft())
            busy.append(idle.popleft())
            busy[-1].send(chunk, number)
        for worker in busy:
            yield worker.receive()


class _Worker:
    """One process; it gets a chunk, answers it, gets the next."""

    def __init__(self, tokenizers: Sequence[Tokenizer], settings: EncodingSettings) -> None:
        package = str(Path(__file__).parent.parent)
        # Each worker is one of many, so it uses one thread; the parent's interrupts are the parent's to handle.
        environment = os.environ | {
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "PYTHONUTF8": "1",
        }
        command = [sys.executable, "-c", _BOOT, package]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        start = {"tokenizers": [tokenizer.text for tokenizer in tokenizers], "settings": settings.identity()}
        self._write([_bytes(json.dumps(start))])

    def send(self, chunk: Sequence[Sequence[str]], number: int) -> None:
        arrays = [np.asarray([number], np.int64)]
        for column in chunk:
            arrays += [_bytes("".join(column)), np.fromiter(map(len, column), np.int64, len(column))]
        self._write(arrays)

    def receive(self) -> Encoding:
        arrays = _read(self._out)
        if not arrays:
            raise DataError(
                f"a process that encoded text ended early (exit code {self._process.wait()}); "
                "it may have run out of memory, so give the machine more or set REGARD_WORKERS to 1"
            )
        keep, header = arrays[0].astype(bool), json.loads(arrays[1].tobytes())
        pairs = iter(arrays[2:])
        return Encoding(
            keep, header["counts"], [[(next(pairs), next(pairs)) for _ in range(n)] for n in header["sides"]]
        )

    def _write(self, arrays: Sequence[NDArray]) -> None:
        with contextlib.suppress(BrokenPipeError):  # `receive` says what happened
            _write(self._in, arrays)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._in.close()
        self._out.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:  # in the middle of a chunk that nobody wants any more
            self._process.kill()
            self._process.wait()


def serve() -> None:
    """The worker's side: answer chunks until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    start = json.loads(_read(incoming)[0].tobytes())
    encoder = ChunkEncoder(
        [Tokenizer.read(text) for text in start["tokenizers"]], EncodingSettings(**start["settings"])
    )
    with contextlib.suppress(BrokenPipeError):
        while arrays := _read(incoming):
            columns = [
                _texts(text, lengths) for text, lengths in zip(arrays[1::2], arrays[2::2], strict=True)
            ]
            found = encoder.run(columns, int(arrays[0][0]))
            header = {"counts": found.counts, "sides": [len(side) for side in found.sides]}
            flat = [array for side in found.sides for pair in side for array in pair]
            _write(outgoing, [found.keep.astype(np.uint8), _bytes(json.dumps(header)), *flat])
    os._exit(0)  # standard output may be gone, and Python would complain about that


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8"), np.uint8)


def _texts(joined: NDArray, lengths: NDArray) -> list[str]:
    text, ends = joined.tobytes().decode("utf-8"), np.cumsum(lengths)
    return [text[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]


def _write(file: IO[bytes], arrays: Sequence[NDArray]) -> None:
    """The number of arrays, then for each its type, its number of bytes and the bytes."""
    file.write(np.asarray([len(arrays)], "<i8").tobytes())
    for array in arrays:
        file.write(array.dtype.str.encode().ljust(8) + np.asarray([array.nbytes], "<i8").tobytes())
        file.write(np.ascontiguousarray(array).data)
    file.flush()


def _read(file: IO[bytes]) -> list[NDArray]:
    """What `_write` wrote; nothing at the end, or when the other side broke off."""
    arrays: list[NDArray] = []
    try:
        for _ in range(int(np.frombuffer(file.read(8), "<i8")[0])):
            kind, size = file.read(8).decode().strip(), int(np.frombuffer(file.read(8), "<i8")[0])
            arrays.append(np.frombuffer(file.read(size), np.dtype(kind)))
    except (ValueError, IndexError, TypeError, OSError):
        return []
    return arrays
