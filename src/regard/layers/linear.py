"""Linear layers that train faster on GPUs.

The bias gradient is a matmul with ones instead of torch's row sum, gradients of float32 weights are summed in
float32 by their product, and a ReLU is part of the product before it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention.kernel_hints import has_plain_call
from regard.attention.tracing import tracer
from regard.errors import ShapeError

BIAS_MATMUL_ON = ("cuda",)  # device types where the bias gradient is faster as a matmul


class Linear(nn.Linear):
    """x Wᵀ + b."""

    def forward(self, input: Tensor) -> Tensor:  # torch's argument name
        return affine(input, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> Tensor:
    """x weightᵀ + bias, (..., in) → (..., out); with `relu`, its positive part."""
    kind = x.device.type
    if bias is None or kind not in BIAS_MATMUL_ON or not torch.is_grad_enabled() or tracer() is not None:
        y = linear(x, weight, bias)
        return torch.relu(y) if relu else y
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return _Affine.apply(x.to(dtype), weight, bias, relu)  # type: ignore[return-value]


def is_plain(layer: nn.Module) -> bool:
    """True if calling this layer only computes x Wᵀ + b, so that its weight and bias may be used directly.

    Wrappers and parametrised layers have a class of their own.
    """
    return type(layer) in (Linear, nn.Linear) and has_plain_call(layer)


def check_input(name: str, x: Tensor, dim: int) -> None:
    """Raise a ShapeError unless x is (..., T, dim)."""
    if x.ndim < 2 or x.shape[-1] != dim:
        shape = tuple(x.shape)
        raise ShapeError(
            f"this layer's {name} is (…, T, {dim}), got {shape}; make the layer for {x.shape[-1]}"
        )


class _Affine(torch.autograd.Function):
    """x Wᵀ + b or, with `relu`, its positive part; W and b may have more digits than x.

    Backward is made of torch operations, so it is differentiable.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, relu: bool = False) -> Tensor:  # noqa: ANN001
        rounded = weight.to(x.dtype)
        if relu:
            rows = x.reshape(-1, x.shape[-1])
            y = torch._addmm_activation(bias.to(x.dtype), rows, rounded.t())  # type: ignore[attr-defined]
            y = y.view(*x.shape[:-1], -1)
        else:
            y = linear(x, rounded, bias.to(x.dtype))
        ctx.save_for_backward(x, weight, rounded, y if relu else None)
        ctx.bias_dtype = bias.dtype
        return y

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN001, ANN205
        x, weight, rounded, y = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # derivatives of the gradients need the path from the weight
            rounded = weight.to(x.dtype)
        if y is not None:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        rows = grad.reshape(-1, grad.shape[-1])  # (rows, out)
        return (
            grad @ rounded if needs_x else None,
            _product(rows.t(), x.reshape(-1, x.shape[-1]), weight.dtype) if needs_weight else None,
            _product(rows.new_ones(1, len(rows)), rows, ctx.bias_dtype)[0] if needs_bias else None,
            None,
        )


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a b in this dtype. A GPU returns its float32 sums of half-precision products without rounding them."""
    if a.is_cuda and a.dtype != dtype == torch.float32 and not torch.is_grad_enabled():
        return torch.mm(a, b, out_dtype=dtype)
    return a.mm(b).to(dtype)
