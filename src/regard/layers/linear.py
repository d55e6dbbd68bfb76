"""Linear maps as torch's; on a GPU the gradient of the bias is a product with ones, as torch's sum over rows takes far longer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class Linear(nn.Linear):
    """x Wᵀ + b."""

    def forward(self, input: Tensor) -> Tensor:  # the name is torch's
        return affine(input, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weightᵀ + bias, (..., in) → (..., out)."""
    if bias is None or x.device.type != "cuda" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return linear(x, weight, bias)
    to = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return _Affine.apply(x.to(to), weight.to(to), bias.to(to))


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # noqa: ANN001
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):  # noqa: ANN001, ANN205
        x, weight = ctx.saved_tensors
        learn_x, learn_weight, learn_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            grad @ weight if learn_x else None,
            rows.t() @ x.reshape(-1, x.shape[-1]) if learn_weight else None,
            rows.new_ones(1, len(rows)).mm(rows)[0] if learn_bias else None,
        )
