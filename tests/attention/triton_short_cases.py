"""The kernels for short sequences by Triton's interpreter, against the reference. Run by test_short.py."""

import math
import sys

import torch

from regard import Causal, Padding, Window, attend
from regard.attention.call import make_call
from regard.attention.kernels.short import TritonShort, attend_short, attend_short_backward
from regard.attention.kernels.triton import band_of
from regard.attention.machine import Machine

SIZES = [
    (3, 2, 7, 7, 16, 16),
    (2, 2, 13, 20, 24, 16),
    (2, 1, 33, 40, 16, 40),
    (2, 2, 1, 9, 64, 64),
]  # B, H, Tq, Tk, D, Dv


def masks(B, Tk):
    lengths = torch.tensor([Tk, Tk // 2, 0][:B])
    return [
        None,
        Causal(),
        Causal(offset=0),
        Window(3, 2),
        Window(2, 2, offset=-4),
        Padding(lengths),
        Causal() & Padding(lengths),
    ]


def error(B, H, Tq, Tk, D, Dv, mask):
    """The largest difference in output and gradients, with NaN in every key and query that takes no part."""
    # Views as a layer makes them: (batch, time, heads, dim) transposed.
    q, k, v = (torch.randn(B, T, H, d).transpose(1, 2) for T, d in ((Tq, D), (Tk, D), (Tk, Dv)))
    grad = torch.randn(B, H, Tq, Dv)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    true = attend(*leaves, mask=mask, kernel="reference")
    truth = (true, *torch.autograd.grad(true, leaves, grad.double()))
    allowed = torch.ones(1, Tq, Tk, dtype=torch.bool) if mask is None else mask.dense(Tq, Tk)
    q = q.masked_fill(~allowed.any(-1).reshape(-1, 1, Tq, 1), math.nan)
    k, v = (x.masked_fill(~allowed.any(-2).reshape(-1, 1, Tk, 1), math.nan) for x in (k, v))
    call = make_call(q, k, v, mask=mask)
    options = 1 / math.sqrt(D), band_of(call.mask, call)
    result = (attend_short(q, k, v, *options), *attend_short_backward(q, k, v, grad, *options))
    return max(
        (a.double() - b).abs().max().nan_to_num(math.inf).item() for a, b in zip(result, truth, strict=True)
    )


def second_derivative_error(B, H, Tq, Tk, D, Dv, mask):
    """Gradients of a gradient penalty, through autograd, as attend would call it on a GPU.

    Keys and queries that take no part hold NaN.
    """
    q, k, v = (torch.randn(B, H, T, d) for T, d in ((Tq, D), (Tk, D), (Tk, Dv)))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    allowed = torch.ones(1, Tq, Tk, dtype=torch.bool) if mask is None else mask.dense(Tq, Tk)
    q = q.masked_fill(~allowed.any(-1).reshape(-1, 1, Tq, 1), math.nan)
    k, v = (x.masked_fill(~allowed.any(-2).reshape(-1, 1, Tk, 1), math.nan) for x in (k, v))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    results = []
    for out, x in (
        (TritonShort().run(make_call(q, k, v, mask=mask), Machine()), (q, k, v)),
        (attend(*leaves, mask=mask, kernel="reference"), leaves),
    ):
        first = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in first), x))
    return max(
        (a.double() - b).abs().max().div(1 + b.abs().max()).nan_to_num(math.inf).item()
        for a, b in zip(*results, strict=True)
    )


def main():
    torch.manual_seed(0)
    wrong = 0
    for sizes in SIZES:
        for mask in masks(sizes[0], sizes[3]):
            result = error(*sizes, mask)
            wrong += result > 1e-4
            print(f"{result:.1e} {sizes} {mask}")
    for mask in (None, Causal(), Padding(torch.tensor([5, 9]))):
        result = second_derivative_error(2, 2, 9, 9, 16, 8, mask)
        wrong += result > 1e-4
        print(f"{result:.1e} second derivatives {mask}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
