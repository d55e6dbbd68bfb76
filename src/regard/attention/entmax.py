"""α-entmax of rows of scores, with gradients of any order.

a_j = [(α−1)e_j − τ]₊^p with p = 1/(α−1), and τ so that the row sums to 1. With z_j = (α−1)(e_j − max e), τ is
between −1 and 0. On a CPU, Newton's method finds it for α ≤ 2. Where values cannot be read (tracing, a GPU),
the scores are sorted for α = 1.5 and 2; other α are solved by bisection. entmax_gpu.py has kernels for GPUs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention import entmax_gpu
from regard.attention.precision import upcast
from regard.attention.tracing import can_read_values

MAX_STEPS = 64  # of Newton's method


def entmax(scores: Tensor, alpha: float) -> Tensor:
    """The weights, in the dtype of the scores; a score of −∞ gets the weight 0."""
    function = _Entmax if torch.compiler.is_compiling() else _EntmaxWithTangent
    return function.apply(upcast(scores), alpha).to(scores.dtype)  # type: ignore[union-attr]


class _Entmax(torch.autograd.Function):
    """The weights p. Their gradient needs only p: s = p^(2−α) on the support, dp = s (dz − Σ s dz / Σ s).

    The backward pass uses p as an output of this function, so it can be differentiated again.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: float) -> Tensor:
        return _weights(scores, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.alpha = inputs[1]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (p,) = ctx.saved_tensors
        if not torch.is_grad_enabled() and entmax_gpu.is_chosen(p, ctx.alpha):
            return entmax_gpu.gradient(p, grad, ctx.alpha), None
        return _times_jacobian(p, grad, ctx.alpha), None


class _EntmaxWithTangent(_Entmax):
    """With forward-mode differentiation, which torch.compile cannot trace."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:  # type: ignore[override]
        return _times_jacobian(ctx.saved_tensors[0], tangent, ctx.alpha)


def _weights(scores: Tensor, alpha: float) -> Tensor:
    if entmax_gpu.is_chosen(scores, alpha):
        return entmax_gpu.weights(scores, alpha)
    z, power = scores - scores.amax(-1, keepdim=True), 1 / (alpha - 1)
    if alpha == 2.0:
        tau = _newton(z, 1.0) if can_read_values(z) else _sparsemax_by_sorting(z)
        return (z - tau).clamp(min=0)
    if alpha == 1.5:
        z = z / 2
        tau = _newton(z, 2.0) if can_read_values(z) else _entmax15_by_sorting(z)
        return (z - tau).clamp(min=0).square()
    z = z.double() * (alpha - 1)  # a large power multiplies the rounding error
    by_newton = alpha < 2 and can_read_values(z)
    tau = _newton(z, power) if by_newton else _bisect(z, power)
    weights = (z - tau).clamp(min=0).pow(power)
    return (weights / weights.sum(-1, keepdim=True)).to(scores.dtype)


def _times_jacobian(p: Tensor, x: Tensor, alpha: float) -> Tensor:
    """The (symmetric) Jacobian of entmax times x."""
    support = p > 0
    x = torch.where(support, x, 0.0)  # it may be NaN where p is 0
    if alpha == 2.0:
        mean = x.sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
        return torch.where(support, x - mean, 0.0)
    slope = torch.where(support, p, 1.0).pow(2 - alpha).masked_fill(~support, 0.0)
    ratio = slope
    if alpha > 2:
        # Small weights have large slopes. The mean depends only on ratios of slopes; dividing by the largest
        # keeps their sum from overflowing.
        slope = slope.clamp(max=torch.finfo(p.dtype).max)
        ratio = slope / slope.amax(-1, keepdim=True)
    mean = (ratio * x).sum(-1, keepdim=True) / ratio.sum(-1, keepdim=True)
    return torch.where(support, slope * (x - mean), 0.0)


def _newton(z: Tensor, power: float) -> Tensor:
    """τ by Newton's method on h(τ) = ‖(z − τ)₊‖ − 1, the norm of order `power` ≥ 1; z has maximum 0.

    h is convex and decreasing, so the steps from τ = −1, where h ≥ 0, go up to the root and not beyond.
    Convexity also gives h_{k+1}/h_k + h'_{k+1}/h'_k ≤ 1, hence each step divides h·|h'| by 4 or more. It is
    at most n² at the start for n keys and |h'| ≥ 1, so after MAX_STEPS steps h is below float64's precision.
    Normal random scores take 2 to 8 steps. A row stops by itself, so its weights do not depend on other rows.
    """
    tau, root = torch.full_like(z[..., :1], -1.0), torch.empty_like(z)
    highest = -(z.shape[-1] ** (-1 / power))  # of τ: reached if all scores are equal
    moving, tolerance = torch.ones_like(tau, dtype=torch.bool), 4 * torch.finfo(z.dtype).eps
    for _ in range(MAX_STEPS):
        torch.sub(z, tau, out=root).clamp_(min=0)
        if power == 1.0:
            total = root.sum(-1, keepdim=True)
            slope = root.sign_().sum(-1, keepdim=True)  # the size of the support
        elif power == 2.0:
            slope = root.sum(-1, keepdim=True)
            total = root.square_().sum(-1, keepdim=True)
        else:
            powers = root.pow(power - 1)
            slope = powers.sum(-1, keepdim=True)
            total = powers.mul_(root).sum(-1, keepdim=True)
        step = (total - total.pow(1 - 1 / power)) / slope
        tau = torch.where(moving, (tau + step).clamp(max=highest), tau)
        moving &= step.abs() > tolerance * tau.abs()  # false for NaN, which stays in its row
        if not bool(moving.any()):
            break
    return tau


def _ranked(z: Tensor) -> tuple[Tensor, Tensor]:
    """Scores in descending order, and the ranks 1, 2, …; masked scores are set far below the support."""
    # −∞ − −∞ would be NaN in the sums; a finite floor far below the support changes nothing.
    ordered = z.clamp(min=-4.0).sort(-1, descending=True).values
    return ordered, torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)


def _sparsemax_by_sorting(z: Tensor) -> Tensor:
    """τ = (Σ over the support − 1)/size (Martins & Astudillo 2016, alg. 1); z has maximum 0."""
    ordered, rank = _ranked(z)
    size = (1 + rank * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True).clamp(min=1)
    inside = z >= ordered.gather(-1, size - 1)
    return (torch.where(inside, z, 0.0).sum(-1, keepdim=True) - 1) / inside.sum(-1, keepdim=True)


def _entmax15_by_sorting(z: Tensor) -> Tensor:
    """τ = mean − √((1 − Σ(z − mean)²)/size) over the support (Peters et al. 2019, alg. 2); maximum 0."""
    ordered, rank = _ranked(z)
    mean = ordered.cumsum(-1) / rank
    variance = ordered.square().cumsum(-1) / rank - mean.square()
    tau = mean - ((1 - rank * variance) / rank).clamp(min=0).sqrt()
    size = (tau <= ordered).sum(-1, keepdim=True).clamp(min=1)
    tau = tau.gather(-1, size - 1)
    # The difference above loses half of the digits if many weights are small; Newton steps restore them.
    for _ in range(3):
        root = (z - tau).clamp(min=0)
        tau = tau + (root.square().sum(-1, keepdim=True) - 1) / (2 * root.sum(-1, keepdim=True))
    return tau


def _bisect(z: Tensor, power: float) -> Tensor:
    """τ by bisection; z has maximum 0, in float64."""
    low = torch.full_like(z[..., :1], -1.0)
    high = torch.full_like(low, -((1.0 / z.shape[-1]) ** (1 / power)))
    for _ in range(100):
        middle = (low + high) / 2
        enough = (z - middle).clamp(min=0).pow(power).sum(-1, keepdim=True) >= 1
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low
