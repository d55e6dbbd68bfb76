"""The Triton kernels on a CPU, by Triton's interpreter, against the reference. Run by test_triton.py."""

import math
import sys

import torch

from regard import ALiBi, Causal, Padding, Softmax, Window, attend, weights
from regard.attention import Dot, Sigmoid
from regard.attention.call import make_call
from regard.attention.kernels.triton import Triton, band_of, slopes_of
from regard.attention.kernels.triton_launch import (
    PreparedForward,
    banded,
    banded_backward,
    banded_column_sums,
)
from regard.attention.machine import Machine

SIZES = [(2, 2, 1, 70, 90, 24, 16), (1, 1, 1, 100, 33, 16, 40)]  # B, H, Hk, Tq, Tk, D, Dv


def masks(B, Tk):
    short = torch.tensor([Tk // 3, Tk][:B])
    return [
        None,
        Causal(),
        Causal(offset=0),
        Window(20, 9),
        Window(40, 20) & Causal(),
        Window(5, 5, offset=-30),
        Padding(short),
        Causal() & Padding(short - Tk // 3),
    ]


def error(B, H, Hk, Tq, Tk, D, Dv, mask, bias):
    """The largest difference in output and gradients, with NaN in every key and query that takes no part."""
    q, k, v = (torch.randn(s) for s in ((B, H, Tq, D), (B, Hk, Tk, D), (B, Hk, Tk, Dv)))
    grad = torch.randn(B, H, Tq, Dv)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    true = attend(*leaves, mask=mask, bias=bias, kernel="reference")
    truth = (true, *torch.autograd.grad(true, leaves, grad.double()))
    allowed = torch.ones(1, Tq, Tk, dtype=torch.bool) if mask is None else mask.dense(Tq, Tk)
    q = q.masked_fill(~allowed.any(-1).reshape(-1, 1, Tq, 1), math.nan)
    k, v = (x.masked_fill(~allowed.any(-2).reshape(-1, 1, Tk, 1), math.nan) for x in (k, v))
    call = make_call(q, k, v, mask=mask, bias=bias)
    rest = 1 / math.sqrt(D), band_of(call.mask, call), slopes_of(call)
    out, logs = banded(q, k, v, *rest)
    result = (out, *banded_backward(q, k, v, out, logs, grad, *rest)[:3], banded_column_sums(q, k, *rest))
    truth = (*truth, weights(*leaves[:2], mask=mask, bias=bias).sum(-2).detach())
    return max(
        (a.double() - b).abs().max().nan_to_num(math.inf).item() for a, b in zip(result, truth, strict=True)
    )


def sink_error(B, H, Hk, Tq, Tk, D, Dv, mask):
    """With sinks, through autograd, as attend would call it on a GPU."""
    q, k, v = (torch.randn(s, requires_grad=True) for s in ((B, H, Tq, D), (B, Hk, Tk, D), (B, Hk, Tk, Dv)))
    sinks, grad = torch.randn(H, requires_grad=True), torch.randn(B, H, Tq, Dv)
    call = make_call(q, k, v, mask=mask, normalize=Softmax(0.7, sinks=sinks))
    out = Triton().run(call, Machine())
    gradients = (out, *torch.autograd.grad(out, (q, k, v, sinks), grad, retain_graph=True))
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v, sinks)]
    true = attend(*leaves[:3], mask=mask, normalize=Softmax(0.7, sinks=leaves[3]), kernel="reference")
    truth = (true, *torch.autograd.grad(true, leaves, grad.double(), retain_graph=True))
    for y, x, more in ((out, (q, k, v, sinks), grad), (true, leaves, grad.double())):  # a gradient penalty
        first = torch.autograd.grad(y, x, more, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), x)
        gradients, truth = ((*gradients, *second), truth) if y is out else (gradients, (*truth, *second))
    return max(
        (a.double() - b).abs().max().div(1 + b.abs().max()).item()
        for a, b in zip(gradients, truth, strict=True)
    )


def sigmoid_error(B, H, Hk, Tq, Tk, D, Dv, mask, bias, scale):
    """The largest difference of sigmoid attention: output by each way to launch it, gradients of two orders.

    Keys and queries that take no part hold NaN.
    """
    options = {"mask": mask, "bias": bias, "energy": Dot(scale), "normalize": Sigmoid()}
    clean = [3 * torch.randn(s) for s in ((B, H, Tq, D), (B, Hk, Tk, D), (B, Hk, Tk, Dv))]
    grad = torch.randn(B, H, Tq, Dv)
    exact = [x.double().requires_grad_() for x in clean]
    true = attend(*exact, kernel="reference", **options)
    truth = [true, *torch.autograd.grad(true, exact, grad.double(), retain_graph=True)]
    allowed = torch.ones(1, Tq, Tk, dtype=torch.bool) if mask is None else mask.dense(Tq, Tk)
    unseen = [~allowed.any(axis).reshape(-1, 1, n, 1) for axis, n in ((-1, Tq), (-2, Tk), (-2, Tk))]
    dirty = [x.masked_fill(y, math.nan).requires_grad_() for x, y in zip(clean, unseen, strict=True)]
    out = Triton().run(make_call(*dirty, **options), Machine())
    results = [out, *torch.autograd.grad(out, dirty, grad)]
    with torch.no_grad():
        call = make_call(*dirty, **options)
        results.append(Triton().run(call, Machine()))
        if scale > 0 and B > 1:
            band = band_of(mask, call)
            launch = PreparedForward(*dirty, scale, band, slopes_of(call), sigmoid=True)
            results.append(launch(*dirty, band.lengths))
    truth += [true] * (len(results) - 4)
    out = Triton().run(make_call(*dirty, **options), Machine())
    for y, x, g, into in ((out, dirty, grad, results), (true, exact, grad.double(), truth)):
        first = torch.autograd.grad(y, x, g, create_graph=True)
        into += torch.autograd.grad(sum(f.square().sum() for f in first), x)
    return max(
        (a.double() - b).abs().max().div(1 + b.abs().max()).nan_to_num(math.inf).item()
        for a, b in zip(results, truth, strict=True)
    )


def main():
    torch.manual_seed(0)
    wrong = 0
    for n, sizes in enumerate(SIZES):
        for m, mask in enumerate(masks(sizes[0], sizes[4])):
            bias = ALiBi(sizes[1]) if (n + m) % 2 else None  # every mask with and without, at one size each
            result = error(*sizes, mask, bias)
            wrong += result > 1e-4
            print(f"{result:.1e} {sizes} {mask} {bias}")
            result = sigmoid_error(*sizes, mask, bias, (0.25, -0.25)[m % 3 == 2])
            wrong += result > 1e-4
            print(f"{result:.1e} {sizes} {mask} {bias} sigmoid")
        for mask in (None, Causal(), Window(5, 5, offset=-30)):
            result = sink_error(*sizes, mask)
            wrong += result > 1e-4
            print(f"{result:.1e} {sizes} {mask} sinks")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
