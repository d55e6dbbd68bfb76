"""Time and memory to prepare a corpus, from files to batches: python -m benchmarks.prepare [--corpus NAME] …

Everything starts with an empty cache. Memory is the sum over this process and its workers, sampled every
twentieth of a second (Linux). Shared pages are counted once per process, so the sum is an upper bound.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers import machine

if TYPE_CHECKING:
    from regard.data.prepare import Prepared


class Memory:
    """Peak resident memory in MiB, sampled in a thread: `peak` with child processes, `own_peak` without."""

    def __init__(self) -> None:
        self.peak, self.own_peak = 0.0, 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            own = self._resident("self")
            total = own
            for task in Path("/proc/self/task").iterdir():
                try:
                    total += sum(map(self._resident, (task / "children").read_text().split()))
                except OSError:
                    continue
            self.peak, self.own_peak = max(self.peak, total), max(self.own_peak, own)
            time.sleep(0.05)

    @staticmethod
    def _resident(process: str) -> float:
        try:
            return (
                int(Path(f"/proc/{process}/statm").read_text().split()[1])
                * os.sysconf("SC_PAGE_SIZE")
                / 2**20
            )
        except OSError:
            return 0.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.prepare", description=__doc__)
    parser.add_argument(
        "--corpus", default="europarl-en-de", help="a corpus known by name (default europarl-en-de)"
    )
    parser.add_argument("--source", help="language to translate from")
    parser.add_argument("--target", help="language to translate into")
    parser.add_argument("--kind", default="bpe", help="kind of tokenizer (default bpe)")
    parser.add_argument("--size", type=int, default=32000, help="vocabulary size (default 32000)")
    parser.add_argument("--dropout", type=float, default=0.0, help="BPE-dropout, with 8 variants (default 0)")
    parser.add_argument(
        "--tokens",
        type=int,
        nargs="+",
        default=[4096, 25000],
        help="batch sizes in tokens (default 4096 25000)",
    )
    parser.add_argument(
        "--multiple",
        type=int,
        nargs="*",
        default=[],
        help="values of batch.multiple: shapes and padding with training.graph, for the last batch size",
    )
    options = parser.parse_args(argv)
    print(machine.stamp(), flush=True)
    from regard.errors import RegardError

    with tempfile.TemporaryDirectory() as cache:
        os.environ["REGARD_CACHE"] = cache
        try:
            measure(options)
        except RegardError as error:
            print(error, file=sys.stderr)
            return 2
    return 0


def measure(options: argparse.Namespace) -> None:
    """Load the corpus with an empty and a full cache, then plan and build batches; print times and memory."""
    from regard.data import corpora
    from regard.data.batch_iterator import Batches
    from regard.data.datasets import load_corpus

    task = corpora.find(options.corpus).task
    data = {"corpus": options.corpus, "source": options.source, "target": options.target}
    tokenizer = {"kind": options.kind, "size": options.size, "dropout": options.dropout}
    print(
        f"{options.corpus}, {options.kind} {options.size}, dropout {options.dropout}, {os.cpu_count()} cores"
    )
    memory = Memory()
    time.sleep(0.1)
    print(f"imports: {memory.peak:.0f} MiB")
    start = time.perf_counter()
    corpus = load_corpus(data, tokenizer, task)
    seconds = time.perf_counter() - start
    print(
        f"load, empty cache: {seconds:.1f} s, peak {memory.peak:.0f} MiB "
        f"(this process {memory.own_peak:.0f}); {corpus.train.report}"
    )
    start = time.perf_counter()
    corpus = load_corpus(data, tokenizer, task)
    print(f"load, from the cache: {time.perf_counter() - start:.2f} s")
    size = sum(path.stat().st_size for path in corpus.train.folder.iterdir())
    print(f"train on disk: {size / 2**20:.0f} MiB")
    for tokens in options.tokens:
        batches = Batches(corpus.train, tokens=tokens, seed=1)
        start = time.perf_counter()
        count = batches.per_epoch()
        planned = time.perf_counter() - start
        start = time.perf_counter()
        built = sum(batch.tokens + batch.source_tokens for batch in batches.once())
        seconds = time.perf_counter() - start
        print(
            f"batches of {tokens}: {count:,} an epoch, {batches.padding:.2%} padding, "
            f"planned in {planned:.2f} s, built {built / seconds / 1e6:.1f} M tokens/s on one core"
        )
    for multiple in options.multiple:
        print(graph_shapes(corpus.train, options.tokens[-1], multiple), flush=True)
    print(f"peak in all: {memory.peak:.0f} MiB")


def graph_shapes(prepared: Prepared, tokens: int, multiple: int) -> str:
    """The number of shapes that `training.graph` pads the batches of an epoch to, and their padding."""
    from regard.data.batch_iterator import Batches
    from regard.training.cuda_graph import GraphShapes

    shapes, real, padded, seen = GraphShapes(tokens, None, multiple), 0, 0, set()
    for batch in Batches(prepared, tokens=tokens, seed=1, multiple=multiple).once():
        assert batch.source is not None
        shape = shapes.pad(len(batch), batch.source.shape[1], batch.target.shape[1] - 1)
        seen.add(shape)
        real += batch.tokens + batch.source_tokens
        padded += shape[0] * (shape[1] + shape[2])
    return f"batch.multiple {multiple}: {len(seen)} shapes, {1 - real / padded:.1%} padding"


if __name__ == "__main__":
    sys.exit(main())
