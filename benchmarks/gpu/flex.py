"""Flex through `attend` on a GPU: seconds of compiling as lengths change, with symbolic and static sizes.

python -m benchmarks.gpu.flex            # two minutes; torch's cache on disk makes a second run shorter

Each line: seconds of the first forward pass and of the first training step at a length, then the times of a
call. With symbolic sizes, lengths divisible by 128 share one compilation, and all others another one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.band import milliseconds
from benchmarks.peers import machine
from regard import ALiBi, Causal, Window, attend
from regard.attention import Documents
from regard.attention.kernels import flex

LENGTHS = (2048, 4096, 8192, 3000)
HEADS, DIM = 16, 128
OPTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "documents": lambda T: {"mask": Causal() & Documents(torch.arange(T, device="cuda") // 700)},
    "window": lambda T: {"mask": Window(128, 128)},
    "ALiBi": lambda T: {"mask": Causal(), "bias": ALiBi(HEADS)},
}


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(name: str, T: int) -> str:
    """A line of the table, after the columns that name it."""
    q, k, v, grad = (torch.randn(4, HEADS, T, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    leaves, options = [x.requires_grad_() for x in (q, k, v)], OPTIONS[name](T)

    def forward() -> Tensor:
        return attend(q, k, v, kernel="flex", **options)

    def training() -> object:
        return torch.autograd.grad(forward(), leaves, grad)

    with torch.no_grad():
        first = seconds(forward)
    first_step = seconds(training)
    with torch.no_grad():
        call = milliseconds(forward, 0.1)
    cells = [f"{first:.2f}", f"{first_step:.2f}", f"{call:.3f}", f"{milliseconds(training, 0.1):.3f}"]
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--static", action="store_true", help="only static sizes, as before regard 0.5")
    parser.add_argument("--only", choices=OPTIONS, help="one mask or bias")
    options = parser.parse_args()
    if options.static:
        flex._takes_symbols = lambda call: False
    print(machine.stamp(torch.cuda.get_device_name()), "Triton", version("triton"))
    print("| case | T | first forward, s | first training step, s | forward, ms | training, ms |")
    print("|---|---|---|---|---|---|")
    for name in [options.only] if options.only else OPTIONS:
        for T in LENGTHS:
            print(f"| {name} | {T} | {measure(name, T)} |", flush=True)
        if flex._static_kinds:
            print(f"{name}: torch could not compile symbolic sizes")
            flex._static_kinds.clear()


if __name__ == "__main__":
    main()
