"""Launch the kernels of triton_one_query.py: additive attention of one query per sequence."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from regard.attention.kernels.triton_launch import padded_dim

MAX_KEYS = 4096  # one program reads all keys of a query
MAX_FEATURES = 2048  # of a key or value: they are in registers


class OneQueryInputs(Protocol):
    """What both passes read of `additive_gpu.Passes`."""

    a: Tensor
    b: Tensor
    w: Tensor
    v: Tensor
    B: int
    H: int
    N: int
    Tk: int
    D: int
    Dv: int
    groups: int
    dropout: float
    seed: Tensor | None
    visible: Any
    mask_flags: dict[str, bool]

    def on_device(self) -> AbstractContextManager[object]: ...


def fits(Tq: int, Tk: int, D: int, Dv: int) -> bool:
    """Whether these kernels take a call."""
    return Tq == 1 and Tk <= MAX_KEYS and max(D, Dv) <= MAX_FEATURES


def forward(x: OneQueryInputs, out: Tensor, logs: Tensor) -> None:
    """Fill the output and log2 Σ exp2 of each row."""
    with x.on_device():
        _kernels().forward[(x.N,)](
            x.a, x.b, x.w, x.v, out, logs, x.seed, *x.visible.tensors(),
            *x.a.stride()[:2], *x.b.stride()[:3], x.w.stride(0), *x.v.stride()[:3],
            *x.visible.strides(), x.H, x.groups, x.Tk, x.dropout, **x.mask_flags, **_sizes(x),
        )  # fmt: skip


def backward(
    x: OneQueryInputs, grad: Tensor, out: Tensor, logs: Tensor, da: Tensor, db: Tensor, dv: Tensor | None
) -> Tensor:
    """Fill da, db and dv; return the gradient of w, (H, D)."""
    partial = x.w.new_empty(x.B, x.H, x.D)
    with x.on_device():
        _kernels().backward[(x.N,)](
            x.a, x.b, x.w, x.v, out, grad, logs, da, db, partial, dv, x.seed, *x.visible.tensors(),
            *x.a.stride()[:2], *x.b.stride()[:3], x.w.stride(0), *x.v.stride()[:3], *grad.stride()[:2],
            *x.visible.strides(), x.H, x.groups, x.Tk, x.dropout,
            **x.mask_flags, **_sizes(x), VALUES=dv is not None,
        )  # fmt: skip
    return partial.sum(0)


def _sizes(x: OneQueryInputs) -> dict[str, int]:
    DP, DVP = padded_dim(x.D), padded_dim(x.Dv)
    keys = min(32, max(2, 8192 // max(DP, DVP)))
    return {"D": x.D, "DP": DP, "DV": x.Dv, "DVP": DVP, "BK": keys, "num_warps": 4}


def _kernels() -> Any:
    from regard.attention.kernels import triton_one_query

    return triton_one_query
