"""Residual sum, dropout and layer normalisation as one GPU kernel each way (residual_kernel.py).

    y, rest = add_and_norm(x, f, norm, p)          # y = norm(x + dropout(f)); rest is y once more
    y, rest = add_and_norm(x, f, norm, p, keep_sum=True)      # rest = x + dropout(f), for pre-norm

A sublayer reads `y` and the next residual sum reads `rest`, so that autograd hands both gradients to one
backward kernel instead of adding them up with another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.kernels.triton import is_installed
from regard.attention.tracing import tracer
from regard.layers.residual import LayerNorm, Residual

MAX_DIM = 4096  # a program holds whole rows in registers
MIN_ROWS = 512  # with fewer rows, a step is limited by launches and a library kernel is as good
STEPS = 1 << 16  # resolution of the dropout probability
Sublayer = tuple[Residual, Callable[[Tensor], Tensor]]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


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
        out = rest = x
        for residual, sublayer in sublayers:
            out, rest = add_and_norm(rest, sublayer(out), residual.norm, _rate(residual))
        return final(out)
    out, rest = residuals[0].norm(x), x
    next_norms = [*(residual.norm for residual in residuals[1:]), final]
    for (residual, sublayer), norm in zip(sublayers, next_norms, strict=True):
        out, rest = add_and_norm(rest, sublayer(out), norm, _rate(residual), keep_sum=True)
    return out


def _rate(residual: Residual) -> float:
    return residual.dropout.p if residual.dropout.training else 0.0


def _is_supported(residual: Residual, dim: int) -> bool:
    norm, hooked = residual.norm, residual._forward_hooks or residual._forward_pre_hooks
    return not hooked and is_plain_norm(norm, dim) and threshold(residual.dropout.p) is not None


def is_plain_norm(norm: nn.Module, dim: int) -> bool:
    """True for a LayerNorm over `dim` features with weight and bias, without hooks."""
    return (
        type(norm) in (LayerNorm, nn.LayerNorm)
        and norm.normalized_shape == (dim,)
        and norm.weight is not None
        and norm.bias is not None
        and not norm._forward_hooks
        and not norm._forward_pre_hooks
    )


def threshold(p: float) -> int | None:
    """The number of 65536 values that drop an element; None if p would be rounded to 0 or 1."""
    steps = round(p * STEPS)
    return None if steps == STEPS or (steps == 0 and p > 0) else steps


def add_and_norm(
    x: Tensor, f: Tensor, norm: nn.Module, p: float = 0.0, *, keep_sum: bool = False
) -> tuple[Tensor, Tensor]:
    """Return y = norm(x + dropout(f)) in the dtype of f, and y once more, or with `keep_sum` the sum.

    The sum has the dtype of f, with `keep_sum` the wider dtype of x and f. Statistics are computed in
    float32. The mask depends on a seed drawn from torch's generator of the device, so it can be captured in a
    CUDA graph, and every replay draws another.

    Args:
        x: (..., dim), the residual.
        f: (..., dim), the output of the sublayer.
        norm: its weight, bias and eps.
        p: dropout probability of f, rounded to a multiple of 1/65536.
        keep_sum: return the sum as the second tensor (pre-norm).
    """
    steps = threshold(p)
    assert steps is not None, p
    # Two of torch's 64 random bits are lost to the sign and the upper bound; 62 are enough for a key.
    seed = torch.empty(1, dtype=torch.int64, device=x.device).random_() if steps else None
    y, rest = _AddAndNorm.apply(x, f, norm.weight, norm.bias, seed, (norm.eps, steps, keep_sum))  # type: ignore[misc]
    return y, rest


class _AddAndNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, f, weight, bias, seed, options):  # noqa: ANN001, ANN205
        _, steps, keep_sum = options
        saves = any(ctx.needs_input_grad)
        y, total, mean, rstd = _forward(x, f, weight, bias, seed, options, saves)
        ctx.set_materialize_grads(False)
        ctx.dtypes, ctx.steps, ctx.keep_sum = (x.dtype, f.dtype), steps, keep_sum
        if saves:
            ctx.save_for_backward(total, mean, rstd, weight, bias, seed)
        return y, total if keep_sum else y.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_y, grad_rest):  # noqa: ANN001, ANN205
        total, mean, rstd, weight, bias, seed = ctx.saved_tensors
        if not ctx.keep_sum and grad_y is None:
            grad_y, grad_rest = grad_rest, None
        if grad_y is None:
            grad_y = torch.zeros_like(total, dtype=ctx.dtypes[1])
        dx, df, dweight, dbias = _backward(
            grad_y, grad_rest, (total, mean, rstd, weight, seed), ctx.dtypes, ctx.steps, ctx.keep_sum
        )
        return dx, df, dweight.to(weight.dtype), dbias.to(bias.dtype), None, None


def _forward(
    x: Tensor,
    f: Tensor,
    weight: Tensor,
    bias: Tensor,
    seed: Tensor | None,
    options: tuple[float, int, bool],
    saves: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, the sum, and mean and 1/standard deviation of each row; only y is filled unless `saves`."""
    from regard.layers import residual_kernel

    eps, steps, keep_sum = options
    x, f = x.contiguous(), f.contiguous()
    rows, dim = f.numel() // f.shape[-1], f.shape[-1]
    y = torch.empty_like(f)
    sum_dtype = torch.promote_types(x.dtype, f.dtype) if keep_sum else f.dtype
    total = torch.empty_like(f, dtype=sum_dtype)
    mean, rstd = torch.empty((2, rows), dtype=torch.float32, device=f.device)
    constants: dict[str, Any] = {"DROPOUT": steps > 0, "SAVE": saves or keep_sum}
    block = _block(dim)
    residual_kernel.forward[(-(-rows // block["ROWS"]),)](
        x, f, weight, bias, y, total, mean, rstd, seed,
        rows, eps, steps, _scale(steps), **block, **constants,
    )  # fmt: skip
    return y, total, mean, rstd


def _backward(
    grad_y: Tensor,
    grad_rest: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    dtypes: tuple[torch.dtype, torch.dtype],
    steps: int,
    keep_sum: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, f, weight and bias. `grad_rest` belongs to the second output."""
    from regard.layers import residual_kernel

    total, mean, rstd, weight, seed = saved
    grad_y = grad_y.contiguous()
    grad_rest = None if grad_rest is None else grad_rest.contiguous()
    rows, dim = mean.numel(), total.shape[-1]
    split = steps > 0 or dtypes[0] != dtypes[1]
    dx = torch.empty_like(total, dtype=dtypes[0])
    df = torch.empty_like(total, dtype=dtypes[1]) if split else dx
    block = _block(dim)
    tiles = -(-rows // block["ROWS"])
    programs = min(tiles, _programs(total.device))
    partial = torch.empty((2, programs, dim), dtype=torch.float32, device=total.device)
    second_y, grad_sum = (None, grad_rest) if keep_sum else (grad_rest, None)
    constants: dict[str, Any] = {"DROPOUT": steps > 0, "SPLIT": split}
    constants |= {"HAS_GY2": second_y is not None, "HAS_GSUM": grad_sum is not None}
    residual_kernel.backward[(programs,)](
        grad_y, second_y, grad_sum, total, mean, rstd, weight, seed, dx, df, partial[0], partial[1],
        rows, tiles, steps, _scale(steps), **block, **constants,
    )  # fmt: skip
    dweight, dbias = partial.sum(1)  # the second stage of the sums over rows
    return dx, df, dweight, dbias


def _scale(steps: int) -> float:
    return STEPS / (STEPS - steps)


def _block(dim: int) -> dict[str, Any]:
    """Rows of a tile and warps: a warp has a row of up to 1024 features, more warps share a longer one."""
    cols = max(16, 1 << (dim - 1).bit_length())
    return {
        "D": dim,
        "COLS": cols,
        "ROWS": max(1, min(16, 2048 // cols)),
        "num_warps": 4 if cols <= 2048 else 8,
    }


def _programs(device: torch.device) -> int:
    """Programs of the backward kernel: each writes one partial sum of the gradients of weight and bias."""
    if device.type != "cuda":
        return 3
    return 4 * torch.cuda.get_device_properties(device).multi_processor_count
