"""Half precision is for inputs and outputs: energies and weights are computed in float32, and float64 stays float64."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
DTYPES = (*HALF, torch.float32, torch.float64)


def exact(x: Tensor) -> Tensor:
    """x in at least float32."""
    return x.float() if x.dtype in HALF else x


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Autocast would turn float32 products back into half precision."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
