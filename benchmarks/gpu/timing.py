"""Time and profile functions that may run on a GPU, whose calls return before they are done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

SECONDS = 1.0  # of warm-up and of measurement on a GPU, at least


def synchronize(device: str | torch.device) -> None:
    """Wait until the GPU is done; nothing to do on a CPU."""
    if str(device).startswith("cuda"):
        torch.cuda.synchronize()


def time_runs(
    run: Callable[[], Any], device: str | torch.device, warmup: int, repeats: int, unit: str = "{:.2f} s"
) -> tuple[list[float], Any]:
    """Seconds of each of at least `repeats` runs, after `warmup` others, and the last result.

    On a GPU, both warm-up and measurement take a second at least: in the first runs its clock is still low.
    """
    least = SECONDS if str(device).startswith("cuda") else 0.0
    warm: list[float] = []
    while len(warm) < warmup or sum(warm[1:]) < least * (warmup > 0):  # the first run compiles
        warm.append(_seconds(run, device)[0])
        if len(warm) <= warmup:
            print(f"    warm-up {len(warm)} of {warmup}: {unit.format(warm[-1])}", flush=True)
    seconds, result = [], None
    while len(seconds) < repeats or sum(seconds) < least:
        time_of_run, result = _seconds(run, device)
        seconds.append(time_of_run)
    return seconds, result


def _seconds(run: Callable[[], Any], device: str | torch.device) -> tuple[float, Any]:
    synchronize(device)
    start = time.perf_counter()
    result = run()
    synchronize(device)
    return time.perf_counter() - start, result


def peak_memory(device: str | torch.device) -> str:
    """Peak GPU memory since the last reset, as a table shows it; – on a CPU."""
    on_gpu = str(device).startswith("cuda")
    return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else "–"


def profile(run: Callable[[], Any], device: str | torch.device, rows: int, name_width: int) -> str:
    """The table of torch's profiler for one run, the longest operations first."""
    from torch.profiler import ProfilerActivity

    on_gpu = str(device).startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        run()
        synchronize(device)
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    return profiler.key_averages().table(sort_by=order, row_limit=rows, max_name_column_width=name_width)
