"""What planning may know of the machine. A plain value, so that the choice for a GPU can be tested without one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention import torch_modes


@dataclass(frozen=True)
class Machine:
    """A kind of device, its CUDA capability, what traces or transforms the call, and whether a CUDA graph is being recorded."""

    kind: str = "cpu"
    capability: tuple[int, int] = (0, 0)
    tracer: str | None = None  # only torch operations, and no value may be read
    transform: str | None = None  # and only operations whose derivatives are operations too
    recording: bool = False

    @classmethod
    def of(cls, *tensors: Tensor) -> Machine:
        device = tensors[0].device
        tracer, transform = torch_modes.tracer(*tensors), torch_modes.transform()
        if device.type != "cuda":
            return cls(device.type, (0, 0), tracer, transform)
        recording = tracer is None and torch.cuda.is_current_stream_capturing()
        return cls("cuda", torch.cuda.get_device_capability(device), tracer, transform, recording)
