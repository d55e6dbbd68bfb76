"""Sparsemax and entmax of rows of scores on a CPU: Newton's method beside sorting, bisection and a peer.

python -m benchmarks.entmax_rows

2²⁰ normal random scores in rows of T keys, one thread, the minimum of several calls in turns, in ms. "row" is
the whole normaliser, forward; the peer is the package `entmax`, which sorts (pip install entmax).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

import entmax as peer
import torch

from benchmarks.peers import machine
from benchmarks.peers.command import load_average
from regard.attention import Entmax, entmax

LENGTHS = (8, 64, 512, 2048, 8192)
SCORES, CALLS = 1 << 20, 9


def milliseconds(runs: Sequence[Callable[[], object]], calls: int) -> list[float]:
    best = [float("inf")] * len(runs)
    for _ in range(calls):
        for i, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[i] = min(best[i], (time.perf_counter() - start) * 1e3)
    return best


def measure(T: int) -> list[float]:
    x = torch.randn(SCORES // T, T)
    z = x - x.amax(-1, keepdim=True)
    half, third = z / 2, z.double() * 0.3
    runs = [
        lambda: entmax._newton(z, 1.0),
        lambda: entmax._sparsemax_by_sorting(z),
        lambda: entmax._newton(half, 2.0),
        lambda: entmax._entmax15_by_sorting(half),
        lambda: Entmax(2.0)(x),
        lambda: peer.sparsemax(x),
        lambda: Entmax(1.5)(x),
        lambda: peer.entmax15(x),
    ]
    slow = [lambda: entmax._newton(third, 1 / 0.3), lambda: entmax._bisect(third, 1 / 0.3)]
    return [*milliseconds(runs, CALLS), *milliseconds(slow, 2)]


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine.stamp(None), "entmax", version("entmax"), f"load {load_average() or 0:.1f}")
    print("| T | α = 2: Newton, sorting | α = 1.5: Newton, sorting | α = 2, row: regard, `entmax` "
          "| α = 1.5, row: regard, `entmax` | α = 1.3: Newton, bisection |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    for T in LENGTHS:
        times = measure(T)
        pairs = [f"{a:.1f}, {b:.1f}" for a, b in zip(times[::2], times[1::2], strict=True)]
        print(f"| {T} | {' | '.join(pairs)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
