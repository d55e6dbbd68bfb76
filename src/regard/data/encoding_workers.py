"""Encode chunks of rows in other processes, one per core; results come in the order of the chunks.

Why not concurrent.futures: a worker here imports a few small modules and no torch. A ProcessPoolExecutor that
spawns imports the whole package, and the user's script a second time: on two cores its first result came
after 7.5 s instead of 1.2 s, with 500 MiB of workers instead of 120 MiB. Forking is unsafe once there are
threads. Arrays and texts pass through pipes as plain bytes, and a worker ends when its pipe closes, so none
outlives the process that started it, even if that is killed.
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

from regard.data.chunk_encoder import ChunkEncoder, Encoding, EncodingSettings
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError

MAX_WORKERS = 4  # more gain little: one process reads the rows of all, and each fills its own cache of words
# `import regard` would load torch. An empty package of that name, with the same path, can import the modules
# that a worker needs.
_BOOT = """
import sys, types
package = types.ModuleType("regard")
package.__path__ = [sys.argv[1]]
sys.modules["regard"] = package
from regard.data.encoding_workers import serve
serve()
"""


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_all(
    chunks: Iterable[Sequence[Sequence[str]]],
    tokenizers: Sequence[Tokenizer],
    settings: EncodingSettings,
    workers: int,
) -> Iterator[Encoding]:
    """Yield the encoding of every chunk, in order. This process encodes them itself if `workers` is less than
    2.
    """
    if workers < 2:
        encoder = ChunkEncoder(tokenizers, settings)
        for number, chunk in enumerate(chunks):
            yield encoder.run(chunk, number)
        return
    with contextlib.ExitStack() as stack:
        idle = deque(
            stack.enter_context(_Worker(tokenizers, settings)) for _ in range(min(workers, MAX_WORKERS))
        )
        busy: deque[_Worker] = deque()
        for number, chunk in enumerate(chunks):
            if not idle:  # chunks are dealt in turn, so the first busy worker has the next result
                yield busy[0].receive()
                idle.append(busy.popleft())
            busy.append(idle.popleft())
            busy[-1].send(chunk, number)
        for worker in busy:
            yield worker.receive()


class _Worker:
    """One worker process, which encodes one chunk at a time."""

    def __init__(self, tokenizers: Sequence[Tokenizer], settings: EncodingSettings) -> None:
        package = str(Path(__file__).parent.parent)
        # One thread per worker, because there is one worker per core.
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
        with contextlib.suppress(BrokenPipeError):  # `receive` reports it
            _write(self._in, arrays)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._in.close()
        self._out.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:  # in the middle of a chunk that is no longer needed
            self._process.kill()
            self._process.wait()


def serve() -> None:
    """Main function of a worker: encode chunks until the pipe closes."""
    # Ctrl-C reaches all processes of the terminal; the parent handles it.
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
            encoding = encoder.run(columns, int(arrays[0][0]))
            header = {"counts": encoding.counts, "sides": [len(side) for side in encoding.sides]}
            flat = [array for side in encoding.sides for pair in side for array in pair]
            _write(outgoing, [encoding.keep.astype(np.uint8), _bytes(json.dumps(header)), *flat])
    os._exit(0)  # a normal exit would flush standard output, whose reader may be gone


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8"), np.uint8)


def _texts(joined: NDArray, lengths: NDArray) -> list[str]:
    text, ends = joined.tobytes().decode("utf-8"), np.cumsum(lengths)
    return [text[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]


def _write(file: IO[bytes], arrays: Sequence[NDArray]) -> None:
    """Write the number of arrays, then for each its dtype, its number of bytes and the bytes."""
    file.write(np.asarray([len(arrays)], "<i8").tobytes())
    for array in arrays:
        file.write(array.dtype.str.encode().ljust(8) + np.asarray([array.nbytes], "<i8").tobytes())
        file.write(np.ascontiguousarray(array).data)
    file.flush()


def _read(file: IO[bytes]) -> list[NDArray]:
    """Read what `_write` wrote; an empty list at the end of the pipe."""
    arrays: list[NDArray] = []
    try:
        for _ in range(int(np.frombuffer(file.read(8), "<i8")[0])):
            kind, size = file.read(8).decode().strip(), int(np.frombuffer(file.read(8), "<i8")[0])
            arrays.append(np.frombuffer(file.read(size), np.dtype(kind)))
    except (ValueError, IndexError, TypeError, OSError):
        return []
    return arrays
