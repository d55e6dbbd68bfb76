"""Linear layers with a fast bias gradient on GPUs: a matmul with ones instead of torch's row sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules.module import _has_any_global_hook

from regard.attention.tracing import tracer
from regard.errors import ShapeError

BIAS_MATMUL_ON = ("cuda",)  # device types where the bias gradient is faster as a matmul


class Linear(nn.Linear):
    """x Wᵀ + b."""

    def forward(self, input: Tensor) -> Tensor:  # torch's argument name
        return affine(input, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weightᵀ + bias, (..., in) → (..., out)."""
    kind = x.device.type
    if bias is None or kind not in BIAS_MATMUL_ON or not torch.is_grad_enabled() or tracer() is not None:
        return linear(x, weight, bias)
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return _Affine.apply(x.to(dtype), weight.to(dtype), bias.to(dtype))


def is_plain(layer: nn.Module) -> bool:
    """True if calling this layer only computes x Wᵀ + b, so that its weight and bias may be used directly.

    Wrappers and parametrised layers have a class of their own.
    """
    return type(layer) in (Linear, nn.Linear) and has_plain_call(layer)


def has_plain_call(module: nn.Module) -> bool:
    """True if calling a module only runs the `forward` of its class: not patched, compiled or hooked."""
    if "forward" in vars(module) or module._compiled_call_impl is not None or _has_any_global_hook():
        return False
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def check_input(name: str, x: Tensor, dim: int) -> None:
    """Raise a ShapeError unless x is (..., T, dim)."""
    if x.ndim < 2 or x.shape[-1] != dim:
        shape = tuple(x.shape)
        raise ShapeError(
            f"this layer's {name} is (…, T, {dim}), got {shape}; make the layer for {x.shape[-1]}"
        )


class _Affine(torch.autograd.Function):
    """x Wᵀ + b with the bias gradient as a matmul.

    Backward is made of torch operations, so it is differentiable.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # noqa: ANN001
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN001, ANN205
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])  # (rows, out)
        return (
            grad @ weight if needs_x else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if needs_weight else None,
            rows.new_ones(1, len(rows)).mm(rows)[0] if needs_bias else None,
        )
