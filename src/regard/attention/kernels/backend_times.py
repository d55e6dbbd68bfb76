"""The faster of torch's two fused GPU backends for plain and causal attention, cuDNN or flash.

Which one is faster depends on the GPU, torch's version, head size and length. Both are timed on first use,
once for each kind of call, and the times are kept in `backends.json` of the cache directory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from regard.attention.call import Call
from regard.attention.machine import Machine
from regard.errors import FolderError
from regard.files.atomic import write_file
from regard.files.cache import cache_folder

BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION")
MIN_GAIN = 1.05  # cuDNN is used if it is faster by this factor: flash makes no plans
MAX_LENGTH = 4096  # longer calls are timed at this length
HEADS = 16  # at least, in the calls that are timed
ROUNDS, CALLS = 3, 10  # the best mean of CALLS calls in ROUNDS rounds

Times = dict[str, float]  # milliseconds by backend; without those that cannot run the call
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # of query, key and value


@dataclass(frozen=True)
class Kind:
    """Calls that share one choice; the length is a power of two."""

    dtype: torch.dtype
    head_dim: int
    length: int
    causal: bool
    training: bool

    @classmethod
    def of(cls, call: Call) -> Kind:
        length = min(MAX_LENGTH, 1 << (min(call.Tq, call.Tk).bit_length() - 1))
        return cls(call.dtype, call.query.shape[-1], length, call.mask is not None, call.requires_grad)

    @property
    def heads(self) -> int:
        """Heads of the timed call: enough to fill the GPU at any length."""
        return max(HEADS, (1 << 15) // self.length)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        size = f"{dtype}, {self.heads} heads of {self.head_dim}, {self.length} positions"
        return size + (", causal" if self.causal else "") + (", with backward" if self.training else "")


_in_memory: dict[tuple[str, Kind], Times | None] = {}  # by GPU; None: cannot be timed in this process


def backend_times(call: Call, machine: Machine) -> Times | None:
    """Milliseconds of each backend for calls like this one; None if unknown and impossible to time now."""
    device = call.query.device
    if device.type != "cuda" or machine.tracer is not None or machine.transform is not None:
        return None
    kind, gpu = Kind.of(call), _gpu(device)
    if (gpu, kind) not in _in_memory:
        if machine.capturing:
            return read_times(_file(), gpu).get(str(kind))
        _in_memory[gpu, kind] = stored_or_measured(_file(), gpu, kind, lambda: _measure(kind, device))
    return _in_memory[gpu, kind]


def fastest_first(times: Times) -> list[str]:
    """The backends that can run, the faster one first."""
    flash, cudnn = (times.get(name, math.inf) for name in BACKENDS)
    names = BACKENDS if flash <= MIN_GAIN * cudnn else BACKENDS[::-1]
    return [name for name in names if name in times]


def describe_times(call: Call, times: Times) -> str:
    """The times in words, for `explain`."""
    shown = ", ".join(f"{name} {times[name]:.3g} ms" for name in fastest_first(times))
    return f"measured once on this GPU: {shown}; {Kind.of(call)}"


def stored_or_measured(path: Path, gpu: str, kind: Kind, measure: Callable[[], Times | None]) -> Times | None:
    """The times in the file, or measured now and added to it."""
    if (times := read_times(path, gpu).get(str(kind))) is not None:
        return times
    if (times := measure()) is not None:
        known = _read(path)
        known[gpu] = read_times(path, gpu) | {str(kind): times}
        with suppress(FolderError):  # a cache that cannot be written: the next process measures again
            write_file(path, json.dumps(known, indent=1) + "\n")
    return times


def read_times(path: Path, gpu: str) -> dict[str, Times]:
    """The times of a GPU by kind; entries that cannot be read are left out."""
    found = _read(path).get(gpu)
    if not isinstance(found, dict):
        return {}
    return {
        kind: times
        for kind, times in found.items()
        if isinstance(times, dict) and all(isinstance(t, float) for t in times.values())
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _file() -> Path:
    return cache_folder() / "backends.json"


@cache
def _gpu(device: torch.device) -> str:
    versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return f"{torch.cuda.get_device_name(device)}, {versions}"


def _measure(kind: Kind, device: torch.device) -> Times | None:
    """Time both backends; None if there is no memory for it."""
    # The call may be inside autocast, inference mode or a mode that intercepts torch: none of them is timed.
    with (
        torch.inference_mode(False),
        torch.autocast("cuda", enabled=False),
        torch._C.DisableTorchFunction(),
        _disable_current_modes(),
        torch.cuda.device(device),
    ):
        shape = (1, kind.heads, kind.length, kind.head_dim)
        try:
            inputs = [torch.randn(shape, dtype=kind.dtype, device=device) for _ in range(4)]
            times = {name: _milliseconds(name, kind, *inputs) for name in BACKENDS}
        except torch.OutOfMemoryError:
            return None
    return {name: time for name, time in times.items() if time < math.inf}


def _milliseconds(name: str, kind: Kind, q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> float:
    """The best mean time of a call; ∞ if the backend does not take such calls."""
    q, k, v = (x.detach().requires_grad_(kind.training) for x in (q, k, v))
    attention = backend_function(name, causal=kind.causal, training=kind.training)

    def step() -> None:
        out = attention(q, k, v)
        if kind.training:
            torch.autograd.grad(out, (q, k, v), grad)

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best = math.inf
    with torch.set_grad_enabled(kind.training):
        try:
            step()  # cuDNN makes its plan
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return math.inf
        for _ in range(ROUNDS):
            start.record()
            for _ in range(CALLS):
                step()
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end) / CALLS)
    return best


def backend_function(
    name: str, *, causal: bool, training: bool, dropout: float = 0.0, scale: float | None = None
) -> Attention:
    """Plain or causal attention by one of BACKENDS, without torch's selection at each call."""
    if name == "CUDNN_ATTENTION":
        run: Any = torch._scaled_dot_product_cudnn_attention  # type: ignore[attr-defined]
        options: tuple[Any, ...] = (None, training, dropout, causal, False)
    else:
        run = torch._scaled_dot_product_flash_attention  # type: ignore[attr-defined]
        options = (dropout, causal, False)
    return lambda q, k, v: run(q, k, v, *options, scale=scale)[0]
