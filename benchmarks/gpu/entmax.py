"""Sparsemax and entmax-1.5 on a GPU: our kernels beside sorting and torch.compile.

python -m benchmarks.gpu.entmax          # on a GPU, about a minute
python -m benchmarks.gpu.entmax --tiny   # small shapes on a CPU in Triton's interpreter; times mean nothing

The first table has the rows alone: scores q·k/√D of normal random vectors, (batch × heads × T) rows of T keys
in float32. Bytes are those that a pass must read and write: scores and weights forward; weights, gradient and
its result backward. The second table has `regard.attend` with and without the kernels, and the plain formula,
compiled, whose times include the products.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from benchmarks.attend.peers import entmax15, sparsemax
from benchmarks.gpu.additive import clocks
from benchmarks.gpu.band import milliseconds
from benchmarks.peers import machine
from regard import attend
from regard.attention import Entmax, entmax, entmax_gpu

SHAPES = [(4, 16, 512, 128), (4, 16, 2048, 128)]  # batch, heads, T, D
TINY = [(1, 2, 20, 8)]
FORMULAS = {2.0: sparsemax, 1.5: entmax15}
NAMES = {2.0: "sparsemax", 1.5: "entmax 1.5"}


@contextmanager
def kernels(chosen: bool) -> Iterator[None]:
    before, entmax_gpu.CHOSEN = entmax_gpu.CHOSEN, chosen
    try:
        yield
    finally:
        entmax_gpu.CHOSEN = before


def relative_error(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


def print_rows(shapes: list[tuple[int, int, int, int]], device: str) -> None:
    print("| rows | T | pass | kernel ms | GB/s | plain torch ms | compiled ms | error |")
    print("|---|---|---|---|---|---|---|---|")
    for B, H, T, D in shapes:
        for alpha, formula in FORMULAS.items():
            q, k, grad = (torch.randn(B, H, T, n, device=device) for n in (D, D, T))
            scores = q @ k.mT / D**0.5
            p = entmax._weights(scores, alpha)
            compiled = formula if device == "cpu" else torch.compile(formula, dynamic=False)
            forward, plain_forward = (
                lambda x=scores, a=alpha: entmax_gpu.weights(x, a),
                lambda x=scores, a=alpha: entmax._weights(x, a),
            )
            backward, plain_backward = (
                lambda p=p, g=grad, a=alpha: entmax_gpu.gradient(p, g, a),
                lambda p=p, g=grad, a=alpha: entmax._times_jacobian(p, g, a),
            )
            passes = (
                ("forward", 2, forward, plain_forward, lambda x=scores, f=compiled: f(x)),
                ("backward", 3, backward, plain_backward, None),
            )
            for name, transfers, ours, plain, peer in passes:
                ms = milliseconds(ours)
                peer_ms = "–" if peer is None else f"{milliseconds(peer):.3f}"
                rate = transfers * scores.nbytes / ms / 1e6
                print(f"| {NAMES[alpha]} | {T} | {name} | {ms:.3f} | {rate:.0f} | {milliseconds(plain):.3f} "
                      f"| {peer_ms} | {relative_error(ours(), plain()):.0e} |",
                      flush=True)  # fmt: skip


def print_attend(shapes: list[tuple[int, int, int, int]], device: str) -> None:
    print("\n| attend | T | mode | kernels ms | without ms | compiled formula ms |")
    print("|---|---|---|---|---|---|")
    for B, H, T, D in shapes:
        for alpha, formula in FORMULAS.items():
            leaves = [torch.randn(B, H, T, D, device=device, requires_grad=True) for _ in range(3)]

            def plain(q: Tensor, k: Tensor, v: Tensor, f: Callable = formula) -> Tensor:
                return f(q @ k.mT / q.shape[-1] ** 0.5) @ v

            compiled = plain if device == "cpu" else torch.compile(plain, dynamic=False)
            ours = lambda *x, a=alpha: attend(*x, normalize=Entmax(a))  # noqa: E731
            for mode in ("forward", "training"):
                times = []
                for function, chosen in ((ours, device != "cpu"), (ours, False), (compiled, False)):
                    with kernels(chosen), torch.set_grad_enabled(mode == "training"):
                        times.append(milliseconds(lambda f=function, x=leaves, m=mode: step(f, x, m)))
                columns = " | ".join(f"{ms:.3f}" for ms in times)
                print(f"| {NAMES[alpha]} | {T} | {mode} | {columns} |", flush=True)


def step(function: Callable[..., Tensor], leaves: list[Tensor], mode: str) -> None:
    out = function(*leaves)
    if mode == "training":
        torch.autograd.grad(out, leaves, out.detach())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.entmax",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tiny", action="store_true", help="small shapes on a CPU, to test the program")
    options = parser.parse_args(arguments)
    device, shapes = ("cpu", TINY) if options.tiny else ("cuda", SHAPES)
    if options.tiny:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when the kernels are imported
    import triton

    torch.manual_seed(0)
    print(machine.stamp(None if options.tiny else torch.cuda.get_device_name()), "Triton", triton.__version__)
    if not options.tiny:
        print(clocks())
    with kernels(False):
        print_rows(shapes, device)
    print_attend(shapes, device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
