"""Sparsemax and entmax-1.5 on an NVIDIA GPU: one kernel per pass, which reads and writes each number once.

They serve float32 rows of at most MAX_KEYS keys, which a program holds in registers (triton_entmax.py).
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from regard.attention.tracing import tracer

CHOSEN = True  # False: plain torch, with which `python -m benchmarks.gpu.entmax` compares
MAX_KEYS = 8192


def is_chosen(x: Tensor, alpha: float) -> bool:
    """True if entmax of these rows, or its gradient, is computed by the kernels."""
    return CHOSEN and x.is_cuda and _is_installed() and can_run(x, alpha) and tracer(x) is None


def can_run(x: Tensor, alpha: float) -> bool:
    return alpha in (1.5, 2.0) and x.dtype == torch.float32 and x.shape[-1] <= MAX_KEYS and x.numel() > 0


def weights(scores: Tensor, alpha: float) -> Tensor:
    """Entmax of the last axis."""
    from regard.attention.triton_entmax import entmax_forward

    scores = scores.contiguous()
    out = torch.empty_like(scores)
    highest = -(scores.shape[-1] ** (1 - alpha))  # of τ: reached if all scores are equal
    _launch(entmax_forward, (scores, out), (highest,), alpha)
    return out


def gradient(p: Tensor, grad: Tensor, alpha: float) -> Tensor:
    """Gradient of the scores, given the weights and their gradient."""
    from regard.attention.triton_entmax import entmax_backward

    p, grad = p.contiguous(), grad.contiguous()
    out = torch.empty_like(p)
    _launch(entmax_backward, (p, grad, out), (), alpha)
    return out


def _launch(kernel: Any, tensors: tuple[Tensor, ...], scalars: tuple[float, ...], alpha: float) -> None:
    x, keys = tensors[0], tensors[0].shape[-1]
    rows, cols = x.numel() // keys, max(16, 1 << (keys - 1).bit_length())
    # One warp needs no barrier in its sums, and a row alone does not wait for others.
    block = {"COLS": cols, "ROWS": max(1, min(16, 512 // cols)), "num_warps": max(1, min(8, cols // 512))}
    with torch.cuda.device_of(x):
        kernel[(-(-rows // block["ROWS"]),)](*tensors, rows, keys, *scalars, SPARSEMAX=alpha == 2.0, **block)


@lru_cache(maxsize=1)
def _is_installed() -> bool:
    return find_spec("triton") is not None
