"""Attention of a step, where every row is one query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.decoding.engine.cuda.packed_weights import exact


def look(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """softmax(q kᵀ + hidden) v for few queries: q (groups, heads, rows, width), scaled already; k and v (groups, heads, seen,
    width); hidden 0 or −inf. Plain products: torch's fused kernels cut queries into tiles of 64, of which one row would be used.
    """
    energy = _energies(q, k).add_(hidden)
    return torch.matmul(torch.softmax(energy, -1).to(v.dtype), v)


def _energies(q: Tensor, k: Tensor) -> Tensor:
    if not (q.is_cuda and q.dtype == torch.bfloat16):
        return torch.matmul(q, k.mT).to(exact(q.dtype))
    found = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT, out_dtype=torch.float32)
    return found.unflatten(0, q.shape[:2])


@contextmanager
def any_mask(device: torch.device) -> Iterator[None]:
    """On a GPU, torch's fused kernel that takes any mask; cuDNN would plan anew for each shape."""
    if device.type != "cuda":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True):
        yield
