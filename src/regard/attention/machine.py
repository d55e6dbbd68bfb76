"""What the plan may know of the machine. A plain value, so that the choice for a GPU can be tested without one."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Machine:
    """A kind of device, its CUDA capability, and whether the call is being traced by torch.compile or recorded as a CUDA graph."""

    kind: str = "cpu"
    capability: tuple[int, int] = (0, 0)
    compiling: bool = False
    recording: bool = False

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        compiling = torch.compiler.is_compiling()
        if device.type == "cuda":
            return cls("cuda", torch.cuda.get_device_capability(device), compiling, torch.cuda.is_current_stream_capturing())
        return cls(device.type, compiling=compiling)
