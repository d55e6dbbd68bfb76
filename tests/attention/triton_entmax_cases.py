"""Sparsemax and entmax-1.5 by our Triton kernels, against plain torch in float64.

Run by test_entmax.py in Triton's interpreter; test_cuda.py uses the same rows on a GPU.
"""

import math
import sys

import torch

from regard.attention import Entmax, entmax, entmax_gpu

SHAPES = [(3, 5, 1), (7, 2), (2, 9, 30), (40, 16), (5, 300), (3, 2048), (2, 5000)]
KINDS = ["normal", "large", "small", "equal", "masked", "not finite", "transposed"]


def rows(shape, kind):
    x = torch.randn(shape) * {"large": 1e4, "small": 1e-3, "equal": 0.0}.get(kind, 1.0)
    if kind == "masked":
        x = x.masked_fill(torch.rand(shape) < 0.7, -math.inf)
        x[..., 0] = 0.1
    elif kind == "not finite":  # among other rows
        flat = x.view(-1, shape[-1])
        flat[::6, 0], flat[2::6, -1], flat[4::6] = math.nan, math.inf, -math.inf
    elif kind == "transposed":
        x = x.mT.contiguous().mT
    return x


def error(shape, kind, alpha, device="cpu"):
    """The largest error of weights and gradients; NaN must be where it is in plain torch."""
    torch.manual_seed(0)
    scores = rows(shape, kind)
    p = entmax._weights(scores.double(), alpha)
    grad = torch.where(p > 0, torch.randn(shape), math.nan)  # NaN reaches nothing where the weight is 0
    p32 = p.float()  # which keys are in the support depends on the rounding of p
    true = p, entmax._times_jacobian(p32.double(), grad.double(), alpha)
    result = (
        entmax_gpu.weights(scores.to(device), alpha),
        entmax_gpu.gradient(p32.to(device), grad.to(device), alpha),
    )
    worst = 0.0
    for ours, theirs in zip(result, true, strict=True):
        ours = ours.cpu().double()
        same = torch.equal(ours.isnan(), theirs.isnan())
        worst = max(worst, (ours - theirs).nan_to_num().abs().max().item() if same else math.inf)
    return worst


def autograd_error(alpha, device="cpu"):
    """The largest error of weights, gradients and second derivatives through `Entmax`."""
    torch.manual_seed(0)
    results = []
    x = torch.randn(2, 3, 40)
    for scores in (x.to(device), x.double()):
        leaf = scores.requires_grad_()
        weights = Entmax(alpha)(leaf)
        (grad,) = torch.autograd.grad(weights.square().sum(), leaf, retain_graph=True)
        (graph,) = torch.autograd.grad(weights.square().sum(), leaf, create_graph=True)
        results.append((weights, grad, torch.autograd.grad(graph.square().sum(), leaf)[0]))
    return max((a.cpu().double() - b).abs().max().item() for a, b in zip(*results, strict=True))


def main():
    wrong = 0
    calls = []

    def is_chosen(x, alpha):
        calls.append(chosen := x.dtype == torch.float32 and entmax_gpu.can_run(x, alpha))
        return chosen

    entmax_gpu.is_chosen = is_chosen
    for alpha in (2.0, 1.5):
        result = autograd_error(alpha)
        wrong += result > 2e-5 or not any(calls)
        print(f"{result:.1e} first and second derivatives {alpha}")
    for shape in SHAPES:
        for kind in KINDS:
            for alpha in (2.0, 1.5):
                result = error(shape, kind, alpha)
                wrong += result > 2e-6
                print(f"{result:.1e} {shape} {kind} {alpha}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
