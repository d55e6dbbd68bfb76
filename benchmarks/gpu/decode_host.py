"""Host time of a search of the CUDA engine, without a GPU: python -m benchmarks.gpu.decode_host

The search of `benchmarks.decode_gpu` with encoder, decoder steps and the copies between buffers replaced by
functions that do nothing. What is left is Python and NumPy: building tasks, padding, and reading hypotheses.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.decode_gpu import Regard, Sizes, build_translator, random_sources
from regard.decoding.engine.cuda import engine
from regard.decoding.engine.cuda.buffers import Buffers, CudaMemory

TINY = Sizes(dim=16, layers=1, heads=1, inner=16)


class IdleGpu:
    """Replacements for what runs on the GPU; every hypothesis is cut off at the length limit."""

    def __init__(self) -> None:
        self.filled: Buffers | None = None

    def encode(self, source: Tensor, lengths: Tensor) -> CudaMemory:
        rows, length = source.shape
        return CudaMemory(torch.empty(1, 2, rows, 1, length, 0), torch.empty(rows, 1, 1, length))

    def run_on(self, buffers: Buffers, key: Any, tokens: int, body: Any) -> None:
        """Do nothing until the last steps, which give random tokens; they stay the same for these buffers."""
        if tokens >= TINY.length:
            if buffers is not self.filled:
                buffers.history.random_(4, TINY.vocabulary)
                buffers.parents.random_(0, buffers.size.width)
                self.filled = buffers
            buffers.last.copy_(torch.arange(-100.0, -100.0 - buffers.size.width, -1))
            buffers.done.fill_(True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Host time of a search of the CUDA engine, without a GPU.")
    parser.add_argument("--sentences", type=int, nargs="+", default=[256, 4096], help="(default 256 4096)")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4], help="(default 1 4)")
    parser.add_argument("--times", type=int, default=15, help="timed runs (default 15)")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options = parser.parse_args()
    torch.set_num_threads(1)  # one batch, as on a GPU
    fast_model = engine(build_translator(TINY, "cpu"))
    fast_model.pool._max_bytes = 1 << 32  # reuse buffers, as on a GPU
    system, idle = Regard("host", fast_model, TINY.length), IdleGpu()
    with (
        patch.object(fast_model, "encode", idle.encode),
        patch.object(fast_model, "run_on", idle.run_on),
        patch.object(Buffers, "load", lambda *_: None),
        patch.object(Buffers, "clear", lambda *_: None),
    ):
        print("| sentences | beam | ms a search, best | median | worst |\n|---|---|---|---|---|")
        for beam in options.beams:
            for count in options.sentences:
                sentences, times = random_sources(TINY, count, seed=1), []
                for _ in range(options.times + 2):
                    start = time.process_time()
                    system(sentences, beam)
                    times.append(1e3 * (time.process_time() - start))
                times = sorted(times[2:])
                columns = times[0], statistics.median(times), times[-1]
                print(f"| {count} | {beam} | {' | '.join(f'{x:.1f}' for x in columns)} |", flush=True)
                if options.profile:
                    with cProfile.Profile() as profiler:
                        system(sentences, beam)
                    pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


if __name__ == "__main__":
    main()
