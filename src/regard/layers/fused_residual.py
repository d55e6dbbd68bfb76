"""Residual sum, dropout and layer normalisation in one GPU kernel per pass (residual_kernel.py).

    y, skip = add_and_norm(x, f, norm, p)                  # post-norm: y = norm(x + dropout(f)), skip = y
    y, skip = add_and_norm(x, f, norm, p, keep_sum=True)   # pre-norm: the same y, skip = x + dropout(f)

The next sublayer reads `y`, and the next residual sum reads `skip`. They are two outputs also where they are
equal: the backward kernel then adds their gradients, which otherwise takes another kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.kernel_hints import has_plain_call
from regard.attention.kernels.triton import is_installed
from regard.attention.kernels.triton_launch import padded_dim
from regard.attention.tracing import tracer
from regard.layers.dropout import STEPS, Dropout
from regard.layers.residual import LayerNorm, Residual

MAX_DIM = 4096  # a program holds whole rows in registers
MIN_ROWS = 512  # with fewer rows, a step is limited by launches and a library kernel is as good
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Sublayer = tuple[Residual, Callable[[Tensor], Tensor]]  # a residual connection and the function inside it


def can_fuse(x: Tensor, residuals: list[Residual], final: nn.Module, *, min_rows: int = MIN_ROWS) -> bool:
    """True if the fused kernels can run these residual connections and the final norm on x (..., dim)."""
    rows, dim = x.numel() // max(1, x.shape[-1]), x.shape[-1]
    if rows < min_rows or dim > MAX_DIM or x.dtype not in DTYPES or not is_installed():
        return False
    if tracer(x) is not None or not all(_is_supported(residual, dim) for residual in residuals):
        return False
    places = {residual.place for residual in residuals}
    return places == {"post"} or (places == {"pre"} and is_plain_norm(final, dim))


def run_sublayers(x: Tensor, sublayers: list[Sublayer], final: nn.Module) -> Tensor:
    """Apply residual connections in order, then the final norm: what calling them one by one computes.

    A pre-norm sum is computed together with the norm of the next sublayer.
    """
    residuals = [residual for residual, _ in sublayers]
    if residuals[0].place == "post":
        out = skip = x
        for residual, sublayer in sublayers:
            out, skip = add_and_norm(skip, sublayer(out), residual.norm, _dropout_rate(residual))
        return final(out)
    out, skip = residuals[0].norm(x), x
    next_norms = [*(residual.norm for residual in residuals[1:]), final]
    for (residual, sublayer), norm in zip(sublayers, next_norms, strict=True):
        out, skip = add_and_norm(skip, sublayer(out), norm, _dropout_rate(residual), keep_sum=True)
    return out


def _dropout_rate(residual: Residual) -> float:
    return residual.dropout.p if residual.dropout.training else 0.0


def _is_supported(residual: Residual, dim: int) -> bool:
    """True if nothing but the sum, the dropout and the norm runs when this connection is called."""
    dropout = residual.dropout
    return (
        type(residual) is Residual
        and has_plain_call(residual)
        and is_plain_norm(residual.norm, dim)
        and type(dropout) is Dropout
        and has_plain_call(dropout)
        and drop_threshold(dropout.p) is not None
    )


def is_plain_norm(norm: nn.Module, dim: int) -> bool:
    """True for a LayerNorm over `dim` features with weight and bias, whose call does nothing else."""
    return (
        type(norm) in (LayerNorm, nn.LayerNorm)
        and norm.normalized_shape == (dim,)
        and norm.weight is not None
        and norm.bias is not None
        and has_plain_call(norm)
    )


def drop_threshold(p: float) -> int | None:
    """An element is dropped if its 16 random bits are below this; None if p would be rounded to 0 or 1."""
    threshold = round(p * STEPS)
    return None if threshold == STEPS or (threshold == 0 and p > 0) else threshold


def add_and_norm(
    x: Tensor, f: Tensor, norm: nn.Module, p: float = 0.0, *, keep_sum: bool = False
) -> tuple[Tensor, Tensor]:
    """Return y = norm(x + dropout(f)) in the dtype of f, and y a second time, or with `keep_sum` the sum.

    The sum has the dtype of f, with `keep_sum` the wider dtype of x and f. Statistics are computed in
    float32. The dropout mask depends on a seed drawn from torch's generator of the device. A CUDA graph can
    capture the call; every replay draws another mask.

    Args:
        x: (..., dim), the input of the residual connection.
        f: (..., dim), the output of the sublayer.
        norm: its weight, bias and eps.
        p: dropout probability of f, rounded to a multiple of 1/65536.
        keep_sum: return the sum as the second tensor (pre-norm).
    """
    threshold = drop_threshold(p)
    assert threshold is not None, p
    # random_() draws integers that are not negative: 63 random bits, enough for a seed.
    seed = torch.empty(1, dtype=torch.int64, device=x.device).random_() if threshold else None
    y, skip = _AddAndNorm.apply(x, f, norm.weight, norm.bias, seed, (norm.eps, threshold, keep_sum))  # type: ignore[misc]
    return y, skip


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, f, weight, bias, seed, options):  # noqa: ANN001, ANN205
        _, threshold, keep_sum = options
        needs_grad = any(ctx.needs_input_grad)
        y, total, mean, rstd = _forward(x, f, weight, bias, seed, options, needs_grad)
        ctx.set_materialize_grads(False)
        ctx.dtypes, ctx.threshold, ctx.keep_sum = (x.dtype, f.dtype), threshold, keep_sum
        if needs_grad:
            ctx.save_for_backward(total, mean, rstd, weight, bias, seed)
        return y, total if keep_sum else y.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_y, grad_skip):  # noqa: ANN001, ANN205
        total, mean, rstd, weight, bias, seed = ctx.saved_tensors
        if not ctx.keep_sum and grad_y is None:
            grad_y, grad_skip = grad_skip, None
        if grad_y is None:
            grad_y = torch.zeros_like(total, dtype=ctx.dtypes[1])
        dx, df, dweight, dbias = _backward(
            grad_y, grad_skip, (total, mean, rstd, weight, seed), ctx.dtypes, ctx.threshold, ctx.keep_sum
        )
        return dx, df, dweight.to(weight.dtype), dbias.to(bias.dtype), None, None


def _forward(
    x: Tensor,
    f: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    options: tuple[float, int, bool],
    needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, the sum, and mean and 1/standard deviation of each row.

    All but y are uninitialised memory if neither a gradient nor the sum is needed.
    """
    from regard.layers import residual_kernel

    eps, threshold, keep_sum = options
    x, f = x.contiguous(), f.contiguous()
    rows, dim = f.numel() // f.shape[-1], f.shape[-1]
    y = torch.empty_like(f)
    sum_dtype = torch.promote_types(x.dtype, f.dtype) if keep_sum else f.dtype
    total = torch.empty_like(f, dtype=sum_dtype)
    mean, rstd = torch.empty((2, rows), dtype=torch.float32, device=f.device)
    constants: dict[str, Any] = {"DROPOUT": threshold > 0, "SAVE": needs_grad or keep_sum}
    block = _block(dim)
    residual_kernel.forward[(-(-rows // block["ROWS"]),)](
        x, f, weight, bias, y, total, mean, rstd, seed,
        rows, eps, threshold, _dropout_scale(threshold), **block, **constants,
    )  # fmt: skip
    return y, total, mean, rstd


def _backward(
    grad_y: Tensor,
    grad_skip: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    dtypes: tuple[torch.dtype, torch.dtype],
    threshold: int,
    keep_sum: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, f, weight and bias."""
    from regard.layers import residual_kernel

    total, mean, rstd, weight, seed = saved
    grad_y = grad_y.contiguous()
    grad_skip = None if grad_skip is None else grad_skip.contiguous()
    rows, dim = mean.numel(), total.shape[-1]
    separate = threshold > 0 or dtypes[0] != dtypes[1]  # else x and f have the same gradient
    dx = torch.empty_like(total, dtype=dtypes[0])
    df = torch.empty_like(total, dtype=dtypes[1]) if separate else dx
    block = _block(dim)
    tiles = -(-rows // block["ROWS"])
    programs = min(tiles, _programs(total.device))
    partial = torch.empty((2, programs, dim), dtype=torch.float32, device=total.device)
    second_grad_y, grad_sum = (None, grad_skip) if keep_sum else (grad_skip, None)
    constants: dict[str, Any] = {"DROPOUT": threshold > 0, "SEPARATE": separate}
    constants |= {"HAS_GY2": second_grad_y is not None, "HAS_GSUM": grad_sum is not None}
    residual_kernel.backward[(programs,)](
        grad_y, second_grad_y, grad_sum, total, mean, rstd, weight, seed, dx, df, partial[0], partial[1],
        rows, tiles, threshold, _dropout_scale(threshold), **block, **constants,
    )  # fmt: skip
    dweight, dbias = partial.sum(1)  # each program summed its own rows
    return dx, df, dweight, dbias


def _dropout_scale(threshold: int) -> float:
    """1 / (1 − p)."""
    return STEPS / (STEPS - threshold)


def _block(dim: int) -> dict[str, Any]:
    """Size of a tile, and warps: a warp handles a row of up to 1024 features, several share a longer one."""
    cols = padded_dim(dim)
    return {
        "D": dim,
        "COLS": cols,
        "ROWS": max(1, min(16, 2048 // cols)),
        "num_warps": 4 if cols <= 2048 else 8,
    }


def _programs(device: torch.device) -> int:
    """Programs of the backward kernel: each writes one partial sum of the gradients of weight and bias."""
    if device.type != "cuda":
        return 3  # of the interpreter
    return 4 * torch.cuda.get_device_properties(device).multi_processor_count
