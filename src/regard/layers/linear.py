"""Linear layers with a fast bias gradient on GPUs: a matmul with ones instead of torch's row sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.modules.module import _has_any_global_hook

from regard.attention.tracing import tracer

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
    """True if calling this layer only computes x Wᵀ + b: no wrapper, parametrisation, hook or patched
    forward.

    Only then may its weight and bias be used directly, without calling it.
    """
    if (
        type(layer) not in (Linear, nn.Linear)
        or "forward" in vars(layer)
        or layer._compiled_call_impl is not None
    ):
        return False  # a parametrised layer has a class of its own
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return not any(hooks) and not _has_any_global_hook()


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
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            grad @ weight if needs_x else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if needs_weight else None,
            rows.new_ones(1, len(rows)).mm(rows)[0] if needs_bias else None,
        )
