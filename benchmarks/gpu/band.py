"""Windows, ALiBi and padded batches on a GPU: our Triton kernel beside Flex and SDPA, forward and backward.

python -m benchmarks.gpu.band            # the table
python -m benchmarks.gpu.band --tune     # block sizes of each pass; --tiny: on a CPU, times mean nothing
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.peers import machine
from regard import ALiBi, Causal, Padding, Window, attend
from regard.attention.call import make_call
from regard.attention.kernels import triton
from regard.attention.kernels import triton_launch as ours

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = (1, 2, 40, 16)
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
    """Lengths of the sequences of a batch, from half to full."""
    return torch.linspace(shape[2] // 2, shape[2], shape[0], device=DEVICE).long()


def milliseconds(function: Callable[[], object], seconds: float = 0.1) -> float:
    """The median GPU time of a call by CUDA events, over calls that take about `seconds` together.

    Without a GPU: the time of one call, so that programs can be tested.
    """
    if not torch.cuda.is_available():
        start = time.perf_counter()
        function()
        return 1000 * (time.perf_counter() - start)
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    torch.cuda.synchronize()
    repeats = max(5, min(200, int(seconds / max(1e-6, time.perf_counter() - start))))
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    for start_event, end_event in events:
        start_event.record()
        function()
        end_event.record()
    torch.cuda.synchronize()
    return sorted(start_event.elapsed_time(end_event) for start_event, end_event in events)[repeats // 2]


def kernel_time(function: Callable[[], object]) -> float:
    """Milliseconds on the GPU alone: twenty calls recorded as one CUDA graph; NaN without a GPU."""
    if not torch.cuda.is_available():
        return math.nan
    try:
        function()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                function()
        return milliseconds(graph.replay) / 20
    except Exception:
        torch.cuda.synchronize()
        return math.nan


def random_inputs(shape: tuple[int, ...]) -> list[Tensor]:
    """Queries, keys and values in bfloat16, with gradients."""
    torch.manual_seed(0)
    return [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]


def allowed_pairs(options: dict, shape: tuple[int, ...]) -> int:
    """The number of pairs of query and key that the mask allows, over the batch and all heads."""
    call = make_call(*(torch.empty(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)), **options)
    band = triton.band_of(call.mask, call)
    assert band is not None
    T = shape[2]
    i = torch.arange(T)
    last = torch.full((shape[0], 1), T) if band.lengths is None else band.lengths.cpu()[:, None]
    stop = torch.minimum((i + band.high + 1).clamp(0, T)[None], last)
    return int((stop - (i + band.low).clamp(0, T)[None]).clamp(min=0).sum()) * shape[1]


def print_table(kernels: list[str], names: list[str]) -> None:
    """Time and error of each kernel on each case; a kernel that cannot run a case gets its error message."""
    print(machine.stamp(torch.cuda.get_device_name()))
    print(
        "| case | kernel | forward, ms | TFLOP/s | without host time, ms | with backward, ms | TFLOP/s "
        "| largest error |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in names:
        shape, options_of = CASES[name]
        q, k, v = random_inputs(shape)
        options, flops = options_of(shape), allowed_pairs(options_of(shape), shape) * 4 * shape[-1]
        one_sequence, one_options = [x[:1].detach() for x in (q, k, v)], options_of((1, *shape[1:]))
        reference = attend(*(x.float() for x in one_sequence), kernel="reference", **one_options)
        for kernel in kernels:
            try:
                out = attend(q, k, v, kernel=kernel, **options)
            except Exception as error:
                print(f"| {name} | {kernel} | – | – | – | – | – | {str(error)[:90]} |", flush=True)
                continue
            grad = torch.randn_like(out)
            with torch.no_grad():
                error = (attend(*one_sequence, kernel=kernel, **one_options).float() - reference).abs().max()
                forward = milliseconds(lambda: attend(q, k, v, kernel=kernel, **options))
                without_host = kernel_time(lambda: attend(q, k, v, kernel=kernel, **options))
            with_backward = milliseconds(
                lambda: torch.autograd.grad(attend(q, k, v, kernel=kernel, **options), (q, k, v), grad)
            )
            print(
                f"| {name} | {kernel} | {forward:.3f} | {flops / forward / 1e9:.0f} | {without_host:.3f} "
                f"| {with_backward:.3f} | {3.5 * flops / with_backward / 1e9:.0f} | {error:.1e} |",
                flush=True,
            )


def tune(names: list[str], seconds: float, *, tiny: bool = False) -> None:
    """Time every block size of each pass."""
    for name in names:
        shape, options_of = CASES[name]
        shape = TINY if tiny else shape
        q, k, v = (x.detach() for x in random_inputs(shape))
        call = make_call(q, k, v, **options_of(shape))
        band, slopes, scale = (
            triton.band_of(call.mask, call),
            triton.slopes_of(call),
            1 / math.sqrt(shape[-1]),
        )
        assert band is not None
        out, logs = ours.banded(q, k, v, scale, band, slopes)
        assert logs is not None
        grad = torch.randn_like(out)
        for block_function in ("_forward_block", "_keys_block", "_queries_block"):
            original, timings = getattr(ours, block_function), []
            end = time.perf_counter() + seconds
            for block_text in BLOCKS[block_function].split(", "):
                numbers = map(int, block_text.split())
                block = dict(zip(("BM", "BN", "num_warps", "num_stages", "maxnreg"), numbers, strict=False))
                if time.perf_counter() > end:
                    break
                setattr(ours, block_function, lambda *_, block=block: block)
                try:
                    if block_function == "_forward_block":
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
                timings.append((ms, tuple(block.values())))
            setattr(ours, block_function, original)
            fastest = "  ".join(f"{ms:.3f} {block}" for ms, block in sorted(timings)[:7])
            print(name, block_function, fastest, flush=True)


BLOCKS = {  # queries, keys, warps, stages, and where they are limited, registers per thread
    "_forward_block": "64 64 4 2, 64 64 4 3, 128 64 8 2 128, 128 32 8 3 128, 128 64 8 3, 128 64 4 2, "
    "128 128 8 2, 64 32 4 4, 128 32 4 4, 64 128 4 2",
    "_keys_block": "64 64 4 2, 32 128 8 3, 32 128 4 3, 64 128 8 2, "
    "64 128 8 3, 32 64 4 3, 32 128 8 2, 64 64 4 1",
    "_queries_block": "64 64 4 2, 128 64 8 3, 128 32 8 3 128, 128 32 8 2 128, 128 32 4 3, 128 32 8 4, "
    "64 32 4 4, 128 64 8 2, 128 32 8 3, 64 32 4 2",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tune", action="store_true", help="time block sizes instead of printing the table")
    parser.add_argument(
        "--kernels", default="triton,flex,sdpa", help="kernels of the table (default triton,flex,sdpa)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="with --tune: seconds per pass and case (default 60)"
    )
    parser.add_argument(
        "--cases", default="", metavar="SUBSTRING", help="only cases whose name contains this"
    )
    parser.add_argument("--tiny", action="store_true", help="with --tune: small shapes in the interpreter")
    args = parser.parse_args(argv)
    if args.tiny:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when the kernels are imported
    names = [name for name in CASES if args.cases in name]
    if args.tune:
        tune(names, args.seconds, tiny=args.tiny)
    else:
        print_table(args.kernels.split(","), names)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
