"""`Machine`: what planning knows about the device. A plain value: tests plan for a GPU without having one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import tracing


@dataclass(frozen=True)
class Machine:
    """Device type, CUDA capability, and what traces, transforms or captures the call."""

    kind: str = "cpu"
    capability: tuple[int, int] = (0, 0)
    tracer: str | None = None  # if set: torch operations only, no values may be read
    transform: str | None = None  # if set: only operations that torch.func can differentiate and batch
    capturing: bool = False  # a CUDA graph is being captured

    @classmethod
    def of(cls, *tensors: Tensor) -> Machine:
        device = tensors[0].device
        tracer, transform = tracing.tracer(*tensors), tracing.transform()
        if device.type != "cuda":
            return cls(device.type, (0, 0), tracer, transform)
        capturing = tracer is None and torch.cuda.is_current_stream_capturing()
        return cls("cuda", torch.cuda.get_device_capability(device), tracer, transform, capturing)
