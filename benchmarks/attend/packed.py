"""Packed sequences beside a loop and a padded batch: python -m benchmarks.attend.packed.

16 sequences of 10 to 500 tokens, causal, 8 heads of 64, one thread of a CPU: milliseconds of the fastest of
several rounds, in which the four take turns. "one sequence" has as many tokens as all of them together.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import regard
from regard.attention import Causal, Packed, Padding

HEADS, DIM = 8, 64
Run = Callable[[], Tensor]


def lengths(count: int = 16, shortest: int = 10, longest: int = 500) -> list[int]:
    """Random lengths with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()


def ways(sizes: list[int], *, gradients: bool) -> dict[str, Run]:
    """The same attention in four ways; each returns its output, (heads, tokens, dim) but for the batch."""
    generator = torch.Generator().manual_seed(1)
    total, longest = sum(sizes), max(sizes)
    packed = [torch.randn(HEADS, total, DIM, generator=generator) for _ in range(3)]
    padded = [torch.zeros(len(sizes), HEADS, longest, DIM) for _ in range(3)]
    for batch, rows in zip(padded, packed, strict=True):
        for i, part in enumerate(rows.split(sizes, -2)):
            batch[i, :, : sizes[i]] = part
    for tensor in (*packed, *padded):
        tensor.requires_grad_(gradients)
    boundaries, counts = Packed.of_lengths(sizes, mask=Causal()), torch.tensor(sizes)

    def loop() -> Tensor:
        parts = zip(*(x.split(sizes, -2) for x in packed), strict=True)
        return torch.cat([regard.attend(q, k, v, mask=Causal()) for q, k, v in parts], -2)

    return {
        "packed": lambda: regard.attend(*packed, mask=boundaries),
        "in a loop": loop,
        "padded batch": lambda: regard.attend(*padded, mask=Padding(counts) & Causal()),
        "one sequence": lambda: regard.attend(*packed, mask=Causal()),
    }


def fastest(runs: dict[str, Run], rounds: int, *, gradients: bool) -> dict[str, float]:
    """Milliseconds of the fastest of several rounds, in which all take turns."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            out = run()
            if gradients:
                out.sum().backward()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.attend.packed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sequences", type=int, default=16)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    sizes = lengths(options.sequences)
    print(f"{len(sizes)} sequences, {sum(sizes)} tokens; milliseconds, fastest of {options.rounds}")
    forward = fastest(ways(sizes, gradients=False), options.rounds, gradients=False)
    both = fastest(ways(sizes, gradients=True), options.rounds, gradients=True)
    for name in forward:
        print(f"{name:14} {forward[name]:7.1f}   with gradients {both[name]:7.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
