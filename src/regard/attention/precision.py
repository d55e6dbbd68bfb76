"""Dtypes: half-precision inputs are computed in float32; float32 and float64 stay as they are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
DTYPES = (*HALF, torch.float32, torch.float64)


def upcast(x: Tensor) -> Tensor:
    """x in at least float32."""
    return x.float() if x.dtype in HALF else x


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of energies and weights for inputs of `dtype`: at least float32."""
    return torch.float32 if dtype in HALF else dtype


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Disable autocast, which would compute float32 matmuls in half precision."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
