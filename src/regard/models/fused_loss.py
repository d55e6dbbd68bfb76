"""Output layer and cross-entropy on a GPU: one Triton kernel per chunk of logits (loss_kernel.py).

The kernel turns a chunk of logits into its gradient. It reads the logits twice, the second time from the L2
cache, and writes them once. The logits of the whole batch never exist at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.kernels.kernel import grad_of_plain
from regard.attention.kernels.triton import is_installed
from regard.attention.tracing import tracer
from regard.data.tokenizer import PAD
from regard.layers.fused_parts import is_enabled

CHUNK_LOGITS = 1 << 28  # logits of a chunk; every chunk adds to the gradient of the output matrix once
CHUNK_ROWS = 128  # rows of a chunk are a multiple of it, the tile of a matmul
LOGITS_DTYPE: torch.dtype | None = torch.float32  # None: that of the features, half the memory traffic
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MIN_VOCABULARY = 1024  # a smaller one would leave most of a program's block empty
BLOCK, WARPS = 4096, 8  # logits that a program handles at a time, and its warps

Gradients = list[Tensor | None]


def can_fuse(features: Tensor, weight: Tensor, agreement: float = 0.0) -> bool:
    """True if the fused loss can run on features (passes, rows, dim) and an output matrix (V, dim)."""
    if not is_enabled("loss") or not features.is_cuda or agreement or len(weight) < MIN_VOCABULARY:
        return False
    return features.dtype in DTYPES and is_installed() and tracer(features) is None


def fused_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The training loss and −log p, summed over labels that are not PAD.

    Args:
        x: (rows, dim), the features.
        weight: (V, dim), the output matrix.
        bias: (V,), the output bias.
        labels: (rows,), token ids.
        smoothing: label smoothing ε.
    """
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return _Fused.apply(x, weight, bias, labels, smoothing, dtype)  # type: ignore[return-value]


class _Fused(torch.autograd.Function):
    """Computes all gradients in the forward pass.

    It casts the inputs itself, so that the gradient of the output matrix stays in float32.
    """

    @staticmethod
    def forward(ctx, x, w, b, labels, smoothing, dtype):  # noqa: ANN001, ANN205
        needed = ctx.needs_input_grad[:3]
        x_cast, w_cast = x.to(dtype), w.to(dtype)
        losses = torch.empty((2, len(x)), dtype=torch.float32, device=x.device)
        gradients: Gradients = [None, None, None]
        for rows in _chunks(len(x), len(w)):
            dlogits = _run_chunk(
                x_cast[rows], w_cast, b, labels[rows], smoothing, losses[:, rows], any(needed)
            )
            if dlogits is not None:
                _add_gradients(gradients, needed, dlogits, x_cast, w_cast, rows)
        ctx.save_for_backward(*gradients, x, w, b, labels)
        ctx.smoothing = smoothing
        total, nll = losses.sum(1)
        nll = nll.clone()  # an output of its own, not a view
        ctx.mark_non_differentiable(nll)
        return total.clone(), nll

    @staticmethod
    def backward(ctx, grad: Tensor, _):  # noqa: ANN001, ANN205
        *gradients, x, w, b, labels = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
                return plain_cross_entropy(x, w, b, labels, ctx.smoothing)[0]

            gradients = grad_of_plain(plain, (x, w, b), grad, ctx.needs_input_grad[:3])
        else:
            gradients = [
                None if gradient is None else (gradient * grad.to(gradient.dtype)).to(tensor.dtype)
                for gradient, tensor in zip(gradients, (x, w, b), strict=True)
            ]
        return *gradients, None, None, None


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    """Chunks of about equal size, multiples of CHUNK_ROWS, so that the last one is not a small remainder."""
    count = max(1, -(-rows * vocabulary // CHUNK_LOGITS))
    size = max(1, -(-rows // (CHUNK_ROWS * count))) * CHUNK_ROWS
    return [slice(start, min(rows, start + size)) for start in range(0, rows, size)]


def _run_chunk(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    labels: Tensor,
    smoothing: float,
    losses: Tensor,
    needs_grad: bool,
) -> Tensor | None:
    """Fill the losses (2, rows) of a chunk: total and −log p. Return the gradient of its logits (rows, V)."""
    from regard.models import loss_kernel

    logits = _compute_logits(x, w)
    in_place = logits.dtype == x.dtype
    grad = logits if in_place or not needs_grad else torch.empty_like(logits, dtype=x.dtype)
    constants: dict[str, Any] = {"IGNORE": PAD, "BLOCK": BLOCK, "num_warps": WARPS}
    constants |= {"HAS_BIAS": b is not None, "NEEDS_GRAD": needs_grad}
    loss_kernel.cross_entropy_rows[(len(x),)](
        logits, grad, b, labels, losses[0], losses[1],
        logits.stride(0), grad.stride(0), len(w), smoothing, **constants,
    )  # fmt: skip
    return grad if needs_grad else None


def _compute_logits(x: Tensor, w: Tensor) -> Tensor:
    """x wᵀ, (rows, V). In the features' dtype, rows are padded in memory, aligned for the next matmuls."""
    if LOGITS_DTYPE is not None and x.dtype != LOGITS_DTYPE:
        return matmul_to(x, w.t(), LOGITS_DTYPE)
    out = x.new_empty((len(x), -(-len(w) // 64) * 64))[:, : len(w)]
    return torch.mm(x, w.t(), out=out)


def _add_gradients(
    gradients: Gradients, needed: Sequence[bool], dlogits: Tensor, x: Tensor, w: Tensor, rows: slice
) -> None:
    """Add a chunk to the gradients of features, matrix and bias, given the gradient of its logits."""
    dx, dw, db = gradients
    if needed[0]:
        gradients[0] = dx = torch.empty_like(x) if dx is None else dx
        torch.mm(dlogits, w, out=dx[rows])
    if needed[1]:
        chunk_dw = matmul_to(dlogits.t(), x[rows], torch.float32)  # (V, dim)
        gradients[1] = chunk_dw if dw is None else dw.add_(chunk_dw)
    if needed[2]:
        chunk_db = dlogits.sum(0, dtype=torch.float32)
        gradients[2] = chunk_db if db is None else db.add_(chunk_db)


def matmul_to(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b in another dtype; a GPU does not round the result to that of a and b first."""
    on_gpu = a.device.type == "cuda"
    return torch.mm(a, b, out_dtype=dtype) if on_gpu and a.dtype != dtype else (a @ b).to(dtype)


def plain_cross_entropy(
    x: Tensor, w: Tensor, b: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """What `fused_cross_entropy` computes, in plain torch on all logits."""
    logits = (x @ w.to(x.dtype).t()).float()
    log_p = torch.log_softmax(logits if b is None else logits + b, -1)
    nll = -log_p.gather(-1, labels[:, None])[:, 0]
    loss = (1 - smoothing) * nll - smoothing * log_p.mean(-1)
    keep = labels != PAD
    return loss.where(keep, 0.0).sum(), nll.detach().where(keep, 0.0).sum()
