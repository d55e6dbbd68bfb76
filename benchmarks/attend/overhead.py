"""Overhead of a small call: regard.attend beside the same kernel called directly, in microseconds.

On a CPU the kernel is torch's scaled_dot_product_attention on one thread; padded calls are compared with SDPA
given a ready boolean mask. On a GPU it is host time until the call returns: SDPA with the backend set once
outside, our Triton kernel launched directly, and Flex with its block mask made and compiled before.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.timing import synchronize
from regard import Causal, Padding, Window, attend
from regard.attention.call import make_call

CreateCalls = Callable[[Tensor, Tensor, Tensor], tuple[Callable[[], Tensor], Callable[[], Tensor]]]
CPU = [((1, 8, 1, 64), (1, 8, 128, 64)), ((8, 4, 16, 32), (8, 4, 16, 32))]
CUDA = [
    ((1, 8, 1, 64), (1, 8, 128, 64)),
    ((8, 8, 64, 64), (8, 8, 64, 64)),
    ((4, 16, 2048, 128), (4, 16, 2048, 128)),
]


@dataclass
class Overhead:
    """Microseconds of a call of `attend` and of the same kernel called directly."""

    name: str
    shapes: str
    grad: str
    direct: float
    ours: float


# Each function below returns two calls: the kernel called directly, and `attend`.


def plain(q: Tensor, k: Tensor, v: Tensor):
    return lambda: scaled_dot_product_attention(q, k, v), lambda: attend(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor):
    square, mask = q.shape == k.shape, Causal()  # the one query of a decoding step may attend to all keys
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=square), lambda: attend(q, k, v, mask=mask)


def _padded(q: Tensor, k: Tensor, v: Tensor, finite: bool):
    T = k.shape[-2]
    lengths = torch.randint(1, T + 1, (len(k),), device=q.device)
    dense_mask = (torch.arange(T, device=q.device) < lengths[:, None])[:, None, None]
    mask = Padding(lengths, finite=finite)
    return lambda: scaled_dot_product_attention(q, k, v, attn_mask=dense_mask), lambda: attend(
        q, k, v, mask=mask
    )


def padded_finite(q: Tensor, k: Tensor, v: Tensor):
    return _padded(q, k, v, True)


def padded(q: Tensor, k: Tensor, v: Tensor):
    return _padded(q, k, v, False)


def window(q: Tensor, k: Tensor, v: Tensor):
    """Beside the function of our own Triton kernel, which `attend` takes here."""
    from regard.attention.kernels import triton, triton_launch

    mask, scale, band = Window(128, 128), 1 / math.sqrt(q.shape[-1]), triton_launch.Band(-128, 128)
    if q.requires_grad:
        arguments = (None, scale, band, triton_launch.Slopes(), make_call(q, k, v, mask=mask), mask)
        return lambda: triton._Attention.apply(q, k, v, *arguments), lambda: attend(q, k, v, mask=mask)
    direct = lambda: triton_launch.banded(q, k, v, scale, band, triton_launch.Slopes(), logs=False)[0]  # noqa: E731
    return direct, lambda: attend(q, k, v, mask=mask)


def window_launch(q: Tensor, k: Tensor, v: Tensor):
    """Beside a launch with everything prepared but the output."""
    from regard.attention.kernels import triton_launch

    mask, scale, band = Window(128, 128), 1 / math.sqrt(q.shape[-1]), triton_launch.Band(-128, 128)
    launch = triton_launch.PreparedForward(q, k, v, scale, band, triton_launch.Slopes())
    return lambda: launch(q, k, v, None), lambda: attend(q, k, v, mask=mask)


def window_flex(q: Tensor, k: Tensor, v: Tensor):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex, T, mask = torch.compile(flex_attention, dynamic=False), q.shape[-2], Window(128, 128)
    blocks = create_block_mask(lambda b, h, i, j: (i - j).abs() <= 128, None, None, T, T, device=q.device)
    return lambda: flex(q, k, v, block_mask=blocks), lambda: attend(q, k, v, mask=mask)


def measure(device: str, rounds: int = 15) -> list[Overhead]:
    """Measure every kind of call and print a row for each."""
    overheads = []
    for query_shape, key_shape in CUDA if device == "cuda" else CPU:
        long = device == "cuda" and query_shape[-2] >= 512
        kinds: dict[str, CreateCalls] = {"plain": plain, "causal": causal, "padded, finite": padded_finite}
        if device == "cpu":
            kinds["padded"] = padded
        if long:
            kinds = {
                "plain": plain,
                "causal": causal,
                "window 128 + 128": window,
                "window beside its launch": window_launch,
                "window beside Flex": window_flex,
            }
        for name, create_calls in kinds.items():
            for grad in ("no", "forward", "forward + backward"):
                if device == "cuda" and grad == "forward + backward":
                    continue
                if create_calls is window_launch and grad != "no":
                    continue
                overheads.append(_measure(name, create_calls, device, query_shape, key_shape, grad, rounds))
                print(_row(overheads[-1]), flush=True)
    return overheads


def _measure(
    name: str,
    create_calls: CreateCalls,
    device: str,
    query_shape: tuple,
    key_shape: tuple,
    grad: str,
    rounds: int,
) -> Overhead:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (
        torch.randn(s, device=device, dtype=dtype, requires_grad=grad != "no")
        for s in (query_shape, key_shape, key_shape)
    )
    functions = create_calls(q, k, v)
    if grad == "forward + backward":
        out = torch.randn_like(functions[0]())
        functions = tuple(lambda f=f: torch.autograd.grad(f(), (q, k, v), out) for f in functions)  # type: ignore[misc]
    calls = 50 if device == "cuda" and query_shape[-2] >= 512 else 500
    times: tuple[list[float], list[float]] = ([], [])
    with _best_backend(device, query_shape, name):
        for _ in range(3):
            for f in functions:
                f()
        for _ in range(rounds):
            for samples, f in zip(times, functions, strict=True):
                synchronize(device)
                start = time.perf_counter()
                for _ in range(calls):
                    f()
                samples.append((time.perf_counter() - start) / calls * 1e6)
                synchronize(device)
    return Overhead(name, f"{query_shape} × {key_shape}", grad, *(statistics.median(x) for x in times))


def _best_backend(device: str, query_shape: tuple, name: str):
    """For the direct call, the backend that regard chooses is set once, before the measurement."""
    if device != "cuda" or query_shape[-2] < 512 or name.startswith("window"):
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION])


def _row(x: Overhead) -> str:
    return f"| {x.name} | {x.shapes} | {x.grad} | {x.direct:.1f} | {x.ours:.1f} | {x.ours - x.direct:+.1f} |"


def _python_speed() -> float:
    """Microseconds for a fixed bit of Python: clocks differ between machines and from minute to minute."""
    empty_function, times = (lambda: None), []
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(100):
            empty_function()
        times.append((time.perf_counter() - start) * 1e5)
    return statistics.median(times)


def run(device: str) -> int:
    """Print the table of overheads on one thread."""
    torch.set_num_threads(1)
    print(f"this processor takes {_python_speed():.2f} µs for ten calls of an empty function")
    print("| call | query × key | gradients | direct, µs | attend, µs | beyond |\n|---|---|---|---|---|---|")
    measure(device)
    return 0
