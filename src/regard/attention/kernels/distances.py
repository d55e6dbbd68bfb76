"""Squared distances on a CPU without the Tq×Tk×D tensor: torch.cdist forward, matrix products backward.

cdist's matmul mode, 2 q·k − ‖q‖² − ‖k‖², is disabled: it loses all digits for vectors that are close to
each other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.energy import DistanceForm, Energy
from regard.attention.kernels.kernel import grad_of_plain

DTYPES = (torch.float32, torch.float64)  # of torch.cdist


class NegativeSquaredDistance(Energy):
    """−‖q − k‖², for centred queries and keys."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return _NegativeSquaredDistance.apply(query, key)  # type: ignore[return-value]

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()


class _NegativeSquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(q, k)
        return torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist").square_().neg_()

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        q, k = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(grad_of_plain(lambda q, k: DistanceForm(q, k, 1.0).energies(), (q, k), grad))
        dq = 2 * (grad @ k - grad.sum(-1, keepdim=True) * q)  # d/dq of −‖q − k‖² is 2 (k − q)
        dk = 2 * (grad.mT @ q - grad.sum(-2)[..., None] * k)
        return dq.sum_to_size(q.shape), dk.sum_to_size(k.shape)
