"""The kernels for few queries against a cache by Triton's interpreter, against the reference.

Run by test_decode.py.
"""

import math
import sys

import torch

from regard import Causal, Padding, Softmax, Window, attend
from regard.attention import Dot
from regard.attention.call import make_call
from regard.attention.kernels import decode
from regard.attention.kernels.decode import TritonCache, attend_cache
from regard.attention.kernels.triton import band_of
from regard.attention.machine import Machine

SIZES = [
    (3, 4, 1, 1, 300, 16, 16),
    (2, 3, 3, 1, 77, 64, 64),
    (3, 6, 2, 1, 530, 80, 48),
    (2, 8, 1, 1, 200, 128, 128),
    (1, 4, 1, 1, 1100, 128, 128),
    (2, 4, 1, 3, 150, 16, 24),
    (2, 20, 1, 2, 90, 24, 16),
    (1, 2, 1, 1, 40, 256, 200),
]  # B, H, Hk, Tq, Tk, D, Dv


def masks(B, Tk):
    lengths = torch.tensor([Tk // 2 + 1, 0, Tk][:B])
    return [
        None,
        Causal(),
        Window(20),
        Window(9, 2, offset=Tk // 2),
        Window(3, 3, offset=Tk + 9),
        Padding(lengths),
        Window(100) & Padding(lengths),
        Padding(lengths + 5),
    ]


def layouts(B, H, T, D):
    """The same numbers contiguous, as (batch, time, heads, dim), in a larger cache, with strided features."""
    x = torch.randn(B, H, T, D)
    cache = torch.full((B, H, T + 7, D + 8), math.nan)
    cache[:, :, :T, :D] = x
    return x, x.transpose(1, 2).contiguous().transpose(1, 2), cache[:, :, :T, :D], x.mT.contiguous().mT


def error(sizes, mask, layout, splits, **options):
    """The largest difference, with NaN in every key and query that takes no part."""
    B, H, Hk, Tq, Tk, D, Dv = sizes
    q, k, v = (layouts(*s)[layout] for s in ((B, H, Tq, D), (B, Hk, Tk, D), (B, Hk, Tk, Dv)))
    true = attend(q.double(), k.double(), v.double(), mask=mask, kernel="reference", **options)
    allowed = torch.ones(1, Tq, Tk, dtype=torch.bool) if mask is None else mask.dense(Tq, Tk)
    unseen = ((q, ~allowed.any(-1).reshape(-1, 1, Tq, 1)), *((x, ~allowed.any(-2).reshape(-1, 1, Tk, 1))
              for x in (k, v)))  # fmt: skip
    for x, where in unseen:  # in place: masked_fill might change the strides
        x[where.expand(x.shape)] = math.nan
    decode._splits = lambda *_: splits
    out = TritonCache().run(make_call(q, k, v, mask=mask, **options), Machine())
    return (out.double() - true).abs().max().nan_to_num(math.inf).item()


def prepared_error():
    """A repeated call through the shortcut, whose lengths and keys have changed."""
    q, k, v = (torch.randn(s) for s in ((2, 4, 1, 16), (2, 2, 90, 16), (2, 2, 90, 16)))
    lengths, errors = torch.tensor([30, 90]), []
    mask = Padding(lengths)
    decode._splits = lambda *_: 3
    decode.PreparedCache.accepts = lambda *_: True  # it asks for the current GPU
    run = TritonCache().shortcut(make_call(q, k, v, mask=mask), Machine())
    for n in (30, 0, 71):
        lengths[0], k = n, torch.randn_like(k)
        true = attend(q.double(), k.double(), v.double(), mask=mask, kernel="reference")
        errors.append((run(q, k, v, mask).double() - true).abs().max().item())
    return max(errors)


def batch_axes_error():
    """Two batch axes; queries, keys and lengths have one of them each."""
    q, k, v = (torch.randn(s) for s in ((2, 1, 4, 1, 16), (3, 2, 50, 16), (1, 3, 2, 50, 24)))
    decode._splits, mask = lambda *_: 2, Padding(torch.tensor([50, 0, 7]))
    out = TritonCache().run(make_call(q, k, v, mask=mask), Machine())
    true = attend(q.double(), k.double(), v.double(), mask=mask, kernel="reference")
    assert out.shape == true.shape
    return (out.double() - true).abs().max().item()


def half_error(dtype):
    q, k, v = (torch.randn(s).to(dtype) for s in ((2, 8, 1, 64), (2, 2, 300, 64), (2, 2, 300, 64)))
    decode._splits, call = lambda *_: 2, make_call(q, k, v)
    out = attend_cache(q, k, v, 0.125, band_of(None, call))
    true = attend(q.double(), k.double(), v.double(), kernel="reference")
    assert out.dtype is dtype
    return (out.double() - true).abs().max().item()


def main():
    torch.manual_seed(0)
    wrong, n = 0, 0
    for sizes in SIZES:
        for mask in masks(sizes[0], sizes[4]):
            n += 1
            layout, splits = n % 4, (1, 2, 7, 19)[n // 4 % 4]
            result = error(sizes, mask, layout, splits)
            wrong += result > 1e-5
            print(f"{result:.1e} {sizes} {mask} layout {layout}, {splits} splits")
    for options in ({"energy": Dot(-0.3)}, {"energy": Dot(0.0)}, {"normalize": Softmax(0.3)}):
        result = error(SIZES[2], Padding(torch.tensor([9, 0, 530])), 0, 3, **options)
        wrong += result > 1e-5
        print(f"{result:.1e} {options}")
    for name, result, limit in (
        ("batch axes", batch_axes_error(), 1e-5),
        ("shortcut", prepared_error(), 1e-5),
        ("float16", half_error(torch.float16), 0.002),  # the interpreter's tl.dot has no bfloat16
    ):
        wrong += result > limit
        print(f"{result:.1e} {name}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
