"""Batches of short sentences on a GPU: our kernel for short sequences beside SDPA and the band kernel.

python -m benchmarks.gpu.short           # times and errors, forward and with the backward pass
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

from benchmarks.gpu.band import kernel_time, milliseconds
from benchmarks.peers import machine
from regard import Causal, Padding, attend

LENGTHS = (8, 12, 16, 24, 32, 48, 64)
KERNELS = ("triton-short", "triton", "sdpa")


def inputs(T: int, tokens: int, heads: int) -> list[Tensor]:
    """Queries, keys and values as a layer makes them: slices of one (batch, time, 3 · heads · 64) tensor."""
    torch.manual_seed(0)
    packed = torch.randn(tokens // T, T, 3, heads, 64, device="cuda", dtype=torch.bfloat16)
    return [x.transpose(1, 2).requires_grad_() for x in packed.unbind(2)]


def error(result: list[Tensor], truth: list[Tensor]) -> float:
    """The largest relative error (by norm) of output and gradients."""
    pairs = zip(result, truth, strict=True)
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs)


def measure(name: str, T: int, tokens: int, heads: int) -> None:
    q, k, v = inputs(T, tokens, heads)
    lengths = torch.linspace(max(1, T // 2), T, len(q), device="cuda").long()
    mask = Causal() if name == "causal" else Padding(lengths, finite=True)
    truth, cells = [], []
    for kernel in ("reference", *KERNELS):
        leaves = [x.detach().double().requires_grad_() for x in (q, k, v)] if not truth else [q, k, v]

        def forward(leaves: list[Tensor] = leaves, kernel: str = kernel) -> Tensor:
            return attend(*leaves, mask=mask, kernel=kernel)

        out = forward()
        grad = torch.linspace(-1, 1, out.shape[-1], device="cuda").to(out.dtype).expand_as(out)
        results = [out.detach(), *torch.autograd.grad(out, leaves, grad)]
        if not truth:
            truth = results
            continue

        def both(leaves: list[Tensor] = leaves, grad: Tensor = grad, forward=forward) -> object:
            return torch.autograd.grad(forward(), leaves, grad)

        with torch.no_grad():
            alone = kernel_time(forward)
        times = [f"{t:.3f}" if not math.isnan(t) else "–" for t in (alone, milliseconds(both))]
        cells.append(f"{' / '.join(times)} ({error(results, truth):.0e})")
    print(f"| {name}, T={T} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.short",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokens", type=int, default=25_000, help="tokens in a batch")
    parser.add_argument("--heads", type=int, default=8)
    options = parser.parse_args()
    print(machine.stamp(torch.cuda.get_device_name()), flush=True)
    print(
        f"{options.tokens} tokens, {options.heads} heads of 64, bfloat16; ms forward / with backward (error)"
    )
    print(f"| case | {' | '.join(KERNELS)} |\n|---|{'---|' * len(KERNELS)}")
    for name in ("padded", "causal"):
        for T in LENGTHS:
            measure(name, T, options.tokens, options.heads)


if __name__ == "__main__":
    main()
