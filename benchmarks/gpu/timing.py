"""Time and profile functions that may run on a GPU, whose calls return before they are done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def synchronize(device: str | torch.device) -> None:
    """Wait until the GPU is done; nothing to do on a CPU."""
    if str(device).startswith("cuda"):
        torch.cuda.synchronize()


def time_runs(
    run: Callable[[], Any], device: str | torch.device, warmup: int, repeats: int, unit: str = "{:.2f} s"
) -> tuple[list[float], Any]:
    """Seconds of each of `repeats` runs after `warmup` others, which are printed; and the last result."""
    seconds, result = [], None
    for i in range(warmup + repeats):
        synchronize(device)
        start = time.perf_counter()
        result = run()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
        if i < warmup:
            print(f"    warm-up {i + 1} of {warmup}: {unit.format(seconds[-1])}", flush=True)
    return seconds[warmup:], result


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
