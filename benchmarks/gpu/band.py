"""Windows, ALiBi and padded batches on a GPU: our Triton kernel beside Flex and SDPA, forward and backward.

python -m benchmarks.gpu.band            # the table
python -m benchmarks.gpu.band --tune     # block sizes, for each pass
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.peers import machine
from regard import ALiBi, Causal, Padding, Window, attend
from regard.attention.call import make_call
from regard.attention.kernels import triton as ours

CASES = {
    "window 128 + 128, T=8192": ((4, 16, 8192, 128), lambda s: {"mask": Window(128, 128)}),
    "window 256 + 0, T=8192": ((4, 16, 8192, 128), lambda s: {"mask": Window(256, 0)}),
    "window 128 + 128, T=2048": ((4, 16, 2048, 128), lambda s: {"mask": Window(128, 128)}),
    "ALiBi causal, T=8192": ((4, 16, 8192, 128), lambda s: {"mask": Causal(), "bias": ALiBi(s[1])}),
    "ALiBi causal, T=2048": ((4, 16, 2048, 128), lambda s: {"mask": Causal(), "bias": ALiBi(s[1])}),
    "padded, T=64, D=64": ((256, 8, 64, 64), lambda s: {"mask": Padding(lengths(s), finite=True)}),
    "padded, T=512, D=64": ((32, 8, 512, 64), lambda s: {"mask": Padding(lengths(s), finite=True)}),
    "causal padded, T=512, D=64": (
        (32, 8, 512, 64),
        lambda s: {"mask": Causal() & Padding(lengths(s), finite=True)},
    ),
}


def lengths(shape: tuple[int, ...]) -> Tensor:
    return torch.linspace(shape[2] // 2, shape[2], shape[0], device="cuda").long()


def milliseconds(f: Callable[[], object], least: float = 0.1) -> float:
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    start = time.perf_counter()
    f()
    torch.cuda.synchronize()
    n = max(5, min(200, int(least / max(1e-6, time.perf_counter() - start))))
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(n)]
    for a, b in events:
        a.record()
        f()
        b.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in events)[n // 2]


def kernel_time(f: Callable[[], object]) -> float:
    """Milliseconds on the GPU alone: twenty calls recorded as one CUDA graph."""
    try:
        f()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                f()
        return milliseconds(graph.replay) / 20
    except Exception:
        torch.cuda.synchronize()
        return math.nan


def make(shape: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]


def pairs(options: dict, shape: tuple[int, ...]) -> int:
    call = make_call(*(torch.empty(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)), **options)
    band = ours.band_of(call.mask, call)
    assert band is not None
    T = shape[2]
    i = torch.arange(T)
    last = torch.full((shape[0], 1), T) if band.lengths is None else band.lengths.cpu()[:, None]
    stop = torch.minimum((i + band.high + 1).clamp(0, T)[None], last)
    return int((stop - (i + band.low).clamp(0, T)[None]).clamp(min=0).sum()) * shape[1]


def table(kernels: list[str]) -> None:
    print(machine.stamp(torch.cuda.get_device_name()))
    print(
        "| case | kernel | forward, ms | TFLOP/s | without host time, ms | with backward, ms | TFLOP/s "
        "| largest error |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, (shape, options_of) in CASES.items():
        q, k, v = make(shape)
        options, work = options_of(shape), pairs(options_of(shape), shape) * 4 * shape[-1]
        part, alike = [x[:1].detach() for x in (q, k, v)], options_of((1, *shape[1:]))
        true = attend(*(x.float() for x in part), kernel="reference", **alike)
        for kernel in kernels:
            try:
                out = attend(q, k, v, kernel=kernel, **options)
            except Exception as error:
                print(f"| {name} | {kernel} | – | – | – | – | – | {str(error)[:90]} |", flush=True)
                continue
            grad = torch.randn_like(out)
            with torch.no_grad():
                error = (attend(*part, kernel=kernel, **alike).float() - true).abs().max()
                forward = milliseconds(lambda: attend(q, k, v, kernel=kernel, **options))
                alone = kernel_time(lambda: attend(q, k, v, kernel=kernel, **options))
            both = milliseconds(
                lambda: torch.autograd.grad(attend(q, k, v, kernel=kernel, **options), (q, k, v), grad)
            )
            print(
                f"| {name} | {kernel} | {forward:.3f} | {work / forward / 1e9:.0f} | {alone:.3f} "
                f"| {both:.3f} | {3.5 * work / both / 1e9:.0f} | {error:.1e} |",
                flush=True,
            )


def tune(names: list[str], seconds: float) -> None:
    """Time every block size of each pass."""
    for name in names:
        shape, options_of = CASES[name]
        q, k, v = (x.detach() for x in make(shape))
        call = make_call(q, k, v, **options_of(shape))
        band, slopes, scale = ours.band_of(call.mask, call), ours.slopes_of(call), 1 / math.sqrt(shape[-1])
        assert band is not None
        out, logs = ours.banded(q, k, v, scale, band, slopes)
        assert logs is not None
        grad = torch.randn_like(out)
        for what in ("_forward_block", "_keys_block", "_queries_block"):
            kept, found = getattr(ours, what), []
            end = time.perf_counter() + seconds
            for one in BLOCKS[what].split(", "):
                block = dict(zip(("BM", "BN", "num_warps", "num_stages"), map(int, one.split()), strict=True))
                if time.perf_counter() > end:
                    break
                setattr(ours, what, lambda *_, block=block: block)
                try:
                    if what == "_forward_block":
                        ms = milliseconds(lambda band=band: ours.banded(q, k, v, scale, band, slopes), 0.03)
                    else:
                        ms = milliseconds(
                            lambda band=band, logs=logs: ours.banded_backward(
                                q, k, v, out, logs, grad, scale, band, slopes
                            ),
                            0.03,
                        )
                except Exception as error:
                    print(f"    {block}: {str(error)[:60]}")
                    continue
                found.append((ms, tuple(block.values())))
            setattr(ours, what, kept)
            print(name, what, "  ".join(f"{ms:.3f} {b}" for ms, b in sorted(found)[:7]), flush=True)


BLOCKS = {  # queries, keys, warps, stages
    "_forward_block": "64 64 4 2, 64 64 4 3, 128 64 8 3, 128 64 4 2, "
    "128 128 8 2, 64 32 4 4, 128 32 4 4, 64 128 4 2",
    "_keys_block": "64 64 4 2, 32 128 8 3, 32 128 4 3, 64 128 8 2, "
    "64 128 8 3, 32 64 4 3, 32 128 8 2, 64 64 4 1",
    "_queries_block": "64 64 4 2, 128 64 8 3, 128 32 4 3, 128 32 8 4, "
    "64 32 4 4, 128 64 8 2, 128 32 8 3, 64 32 4 2",
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--kernels", default="triton,flex,sdpa")
    parser.add_argument("--seconds", type=float, default=60.0, help="tuning time for each pass of each case")
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    args = parser.parse_args()
    CASES = {n: x for n, x in CASES.items() if args.cases in n}
    if args.tune:
        tune(list(CASES), args.seconds)
    else:
        table(args.kernels.split(","))
