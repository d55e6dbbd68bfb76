"""Squared distances on a CPU without the Tq×Tk×D tensor, by torch.cdist, which computes the differences.

cdist's matmul mode, 2 q·k − ‖q‖² − ‖k‖², is disabled, and gradients are not written as matrix products: both
lose all digits for vectors that are close to each other, if any vector is far away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.energy import DistanceForm, Energy
from regard.attention.kernels.kernel import grad_of_plain

DTYPES = (torch.float32, torch.float64)  # of torch.cdist


class NegativeSquaredDistance(Energy):
    """−‖q − k‖²."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return _NegativeSquaredDistance.apply(query, key)  # type: ignore[return-value]

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()


def _distances(q: Tensor, k: Tensor) -> Tensor:
    return torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")


class _NegativeSquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor) -> Tensor:
        ctx.save_for_backward(q, k)
        return _distances(q, k).square_().neg_()

    @staticmethod
    def backward(ctx, grad: Tensor):  # noqa: ANN205
        q, k = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(grad_of_plain(lambda q, k: DistanceForm(q, k, 1.0).energies(), (q, k), grad))
        with torch.enable_grad():
            q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
            distances = _distances(q, k)
        scaled = torch.where(grad == 0, 0.0, -2 * grad * distances.detach())  # not NaN for infinite distances
        return torch.autograd.grad(distances, (q, k), scaled)
