"""Cross-entropy with its output matrix on a GPU: one Triton kernel per chunk of logits (loss_kernel.py).

The kernel turns a chunk of logits into its gradient while it is in memory, so logits are read twice (the
second time from the L2 cache) and written once, and never exist for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.kernels.triton import is_installed
from regard.attention.tracing import tracer
from regard.data.tokenizer import PAD
from regard.layers.fused_parts import is_enabled

CHUNK_LOGITS = 1 << 28  # logits of a chunk; fewer chunks mean fewer sums of the gradient of the matrix
CHUNK_ROWS = 128  # the tile of a matmul
LOGITS_DTYPE: torch.dtype | None = torch.float32  # None: that of the features, half the memory traffic
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MIN_VOCABULARY = 1024  # a smaller one would leave most of a program's block empty
BLOCK, WARPS = 4096, 8  # logits that a program handles at a time

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
    """Computes all gradients in the forward pass. Casts inside, so the matrix's gradient stays in float32."""

    @staticmethod
    def forward(ctx, x, w, b, labels, smoothing, dtype):  # noqa: ANN001, ANN205
        needed = ctx.needs_input_grad[:3]
        x_cast, w_cast = x.to(dtype), w.to(dtype)
        losses = torch.empty((2, len(x)), dtype=torch.float32, device=x.device)
        gradients: Gradients = [None, None, None]
        for rows in _chunks(len(x), len(w)):
            slope = _chunk_gradient(
                x_cast[rows], w_cast, b, labels[rows], smoothing, losses[:, rows], any(needed)
            )
            if slope is not None:
                _add_gradients(gradients, needed, slope, x_cast, w_cast, rows)
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

            def plain(x: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
                return plain_cross_entropy(x, w, b, labels, ctx.smoothing)

            gradients = differentiable_gradient(plain, grad, (x, w, b), ctx.needs_input_grad[:3])
        else:
            gradients = [
                None if gradient is None else (gradient * grad.to(gradient.dtype)).to(tensor.dtype)
                for gradient, tensor in zip(gradients, (x, w, b), strict=True)
            ]
        return *gradients, None, None, None


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    """Chunks of about equal size, a multiple of CHUNK_ROWS: the last one is not a small remainder."""
    count = max(1, -(-rows * vocabulary // CHUNK_LOGITS))
    size = -(-rows // (CHUNK_ROWS * count)) * CHUNK_ROWS
    return [slice(start, min(rows, start + size)) for start in range(0, rows, size)]


def _chunk_gradient(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    labels: Tensor,
    smoothing: float,
    losses: Tensor,
    needs_grad: bool,
) -> Tensor | None:
    """Fill the losses (2, rows) of a chunk: total and −log p; return the gradient of its logits."""
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
    """x wᵀ, (rows, V); in the features' dtype, its rows are aligned for the matmuls that read it."""
    if LOGITS_DTYPE is not None and x.dtype != LOGITS_DTYPE:
        return product(x, w.t(), LOGITS_DTYPE)
    out = x.new_empty((len(x), -(-len(w) // 64) * 64))[:, : len(w)]
    return torch.mm(x, w.t(), out=out)


def _add_gradients(
    gradients: Gradients, needed: Sequence[bool], slope: Tensor, x: Tensor, w: Tensor, rows: slice
) -> None:
    """Add a chunk to the gradients of features, matrix and bias, given the gradient of its logits."""
    dx, dw, db = gradients
    if needed[0]:
        gradients[0] = dx = torch.empty_like(x) if dx is None else dx
        torch.mm(slope, w, out=dx[rows])
    if needed[1]:
        part = product(slope.t(), x[rows], torch.float32)
        gradients[1] = part if dw is None else dw.add_(part)
    if needed[2]:
        part = slope.sum(0, dtype=torch.float32)
        gradients[2] = part if db is None else db.add_(part)


def product(a: Tensor, b: Tensor, to: torch.dtype) -> Tensor:
    """a b in dtype `to`; a GPU writes the result in it directly."""
    return torch.mm(a, b, out_dtype=to) if a.device.type == "cuda" and a.dtype != to else (a @ b).to(to)


def plain_cross_entropy(
    x: Tensor, w: Tensor, b: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """What `fused_cross_entropy` computes, by torch operations on all logits."""
    logits = (x @ w.to(x.dtype).t()).float()
    log_p = torch.log_softmax(logits if b is None else logits + b, -1)
    nll = -log_p.gather(-1, labels[:, None])[:, 0]
    loss = (1 - smoothing) * nll - smoothing * log_p.mean(-1)
    keep = labels != PAD
    return loss.where(keep, 0.0).sum(), nll.detach().where(keep, 0.0).sum()


def differentiable_gradient(
    function: Callable[..., tuple[Tensor, Tensor]],
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    needed: Sequence[bool],
) -> Gradients:
    """The gradient of `function` by features, matrix and bias, differentiable by them and by `grad`."""
    # Views, because the features may depend on the matrix: the gradient by one must not flow into the other.
    x, w, b = (None if tensor is None else tensor.view_as(tensor) for tensor in inputs)
    total, _ = function(x, w, b)
    wanted = [tensor for tensor, need in zip((x, w, b), needed, strict=True) if need and tensor is not None]
    gradients = iter(torch.autograd.grad(total, wanted, grad, create_graph=True))
    return [next(gradients) if need else None for need in needed]
