"""Attention of a decoder step: one query per row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.decoding.engine.cuda.packed_weights import score_dtype


def attend_rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q kᵀ + mask) v for few queries: scaled q (groups, heads, rows, width); k, v (…, keys, width).

    Plain matmuls: torch's fused kernels split queries into tiles of 64, of which one row would be used.
    """
    energy = _energies(q, k).add_(mask)
    return torch.matmul(torch.softmax(energy, -1).to(v.dtype), v)


def _energies(q: Tensor, k: Tensor) -> Tensor:
    if not (q.is_cuda and q.dtype == torch.bfloat16):
        return torch.matmul(q, k.mT).to(score_dtype(q.dtype))
    energies = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT, out_dtype=torch.float32)
    return energies.unflatten(0, q.shape[:2])


@contextmanager
def any_mask_kernel(device: torch.device) -> Iterator[None]:
    """On a GPU, use torch's memory-efficient kernel, which takes any mask; cuDNN plans for each shape."""
    if device.type != "cuda":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True):
        yield
