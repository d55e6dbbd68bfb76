"""Python interface to native.cpp, the C++ attention kernels: functions on float32 CPU tensors, no autograd.

The C++ is compiled on first use and called through ctypes. Query i of batch b sees the keys
``start[b, i] <= j < stop[b, i]``; with energies ``s_ij``

    out_i = sum_j p_ij v_j,    p_ij = exp(s_ij - level_i) / sum_j exp(s_ij - level_i)

    dot:       s_ij = cap(scale * q_i . k_j - slope_h * |i + Tk - Tq - j| + bias_ij),
               cap(s) = softcap * tanh(s / softcap), or s if softcap is 0
    distance:  as dot, with -|q_i - k_j|^2 for q_i . k_j
    additive:  s_ij = cap(sum_d w_hd * tanh(a_id + b_jd) - slope_h * |i + Tk - Tq - j| + bias_ij)

and, with g the gradient of out, ``dv_j = sum_i p_ij g_i`` and ``ds_ij = p_ij (g_i . v_j - g_i . out_i)``.
`norm` holds level and 1 / sum of each row for the backward pass. A row that sees no key gives 0 and no
gradient.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from regard.attention.kernel_inputs import readable
from regard.attention.kernels.build_cpp import check_code, library

_SOURCE = Path(__file__).with_name("native.cpp")


class _Strided(ctypes.Structure):
    """struct Tensor of native.cpp."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("sb", ctypes.c_int64),
        ("sh", ctypes.c_int64),
        ("st", ctypes.c_int64),
    ]


_SIZES = ["B", "H", "Hk", "Tq", "Tk", "D", "Dv", "threads", "range_sb", "chunks", "parallel_b", "parallel_h"]
_POINTERS = ["start", "stop", "slopes", "w"]
_TENSORS = ["q", "k", "v", "out", "norm", "bias", "grad", "dq", "dk", "dv", "dbias", "dw"]


class _Call(ctypes.Structure):
    """struct Call of native.cpp."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in _SIZES]
        + [("scale", ctypes.c_double), ("softcap", ctypes.c_double)]
        + [(name, ctypes.c_void_p) for name in _POINTERS]
        + [(name, _Strided) for name in _TENSORS]
    )


def unavailable() -> str | None:
    """Why the kernels cannot be used, or None. Compiles them if necessary."""
    loaded = library(_SOURCE)
    return loaded if isinstance(loaded, str) else None


def _strided(x: Tensor) -> _Strided:
    """Address and strides of a 3- or 4-dimensional tensor; a batch or head axis of size 1 broadcasts."""
    sb, sh, st = x.stride()[:3]
    return _Strided(x.data_ptr(), 0 if x.shape[0] == 1 else sb, 0 if x.shape[1] == 1 else sh, st)


def _call(
    function: str, start: Tensor, stop: Tensor, tensors: Mapping[str, Tensor | None], **fields: float
) -> None:
    """Call a C++ function with a struct Call of these tensors and further fields."""
    reason = unavailable()
    if reason is not None:
        raise RuntimeError(f"the native kernels cannot be used: {reason}")
    present = {name: x for name, x in tensors.items() if x is not None}
    for name, x in present.items():
        if x.dtype != torch.float32 or x.device.type != "cpu":
            raise TypeError(
                f"native kernels take float32 tensors on the CPU; {name} is {x.dtype} on {x.device}"
            )
    (B, H, Tq, D), (_, Hk, Tk, Dv) = present["q"].shape, present["v"].shape
    start, stop = start.to(torch.int32).contiguous(), stop.to(torch.int32).contiguous()
    call = _Call(B=B, H=H, Hk=Hk, Tq=Tq, Tk=Tk, D=D, Dv=Dv, threads=torch.get_num_threads(), chunks=1)
    call.parallel_b, call.parallel_h = B, Hk
    call.start, call.stop = start.data_ptr(), stop.data_ptr()
    call.range_sb = Tq if start.shape[0] > 1 else 0
    for name, x in present.items():
        setattr(call, name, x.data_ptr() if name in _POINTERS else _strided(x))
    for name, value in fields.items():
        setattr(call, name, value)
    check_code(getattr(library(_SOURCE), function)(ctypes.byref(call)), "attention")


def _empty_outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    (B, H, Tq, _), Dv = q.shape, v.shape[3]
    return q.new_empty(B, Tq, H, Dv).transpose(1, 2), q.new_empty(B, H, 2, Tq)


def _chunks(tasks: int, Tk: int) -> int:
    """Number of chunks of keys in the backward pass, so that threads have enough tasks.

    It does not depend on the number of threads, which must not change how sums are rounded.
    """
    return max(1, min(-(-16 // max(tasks, 1)), Tk // 128))


def _padded(x: Tensor, step: int) -> Tensor:
    """Memory for the gradient of x; rows are padded to a multiple of `step`, so kernels need no tail loop."""
    return x.new_empty(*x.shape[:3], -(-x.shape[3] // step) * step)


def dot_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    start: Tensor,
    stop: Tensor,
    *,
    slopes: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float = 0.0,
    energy: str = "dot",
) -> tuple[Tensor, Tensor]:
    """Attention with dot products or distances: out (B, H, Tq, Dv) and norm for the backward pass."""
    q, k, v = readable(q), readable(k), readable(v)
    slopes, bias = _readable_options(slopes, bias)
    out, norm = _empty_outputs(q, v)
    tensors = dict(q=q, k=k, v=v, out=out, norm=norm, slopes=slopes, bias=bias)
    _call(f"regard_{energy}_forward", start, stop, tensors, scale=scale, softcap=softcap)
    return out, norm


def dot_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    norm: Tensor,
    scale: float,
    start: Tensor,
    stop: Tensor,
    *,
    slopes: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float = 0.0,
    bias_grad: bool = False,
    energy: str = "dot",
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and, with `bias_grad`, of bias (in its own shape)."""
    grad, q, out, k, v = readable(grad), readable(q), readable(out), readable(k), readable(v)
    slopes, bias = _readable_options(slopes, bias)
    dbias, split = _backward_split(q, k, bias if bias_grad else None)
    lanes = _lanes()
    dk, dv = _padded(k, lanes), _padded(v, lanes)
    chunks = split["chunks"]
    dq = q.new_empty(chunks * q.shape[0], *q.shape[1:])
    tensors = dict(q=q, k=k, v=v, out=out, norm=norm, slopes=slopes, bias=bias)
    tensors.update(grad=grad, dq=dq, dk=dk, dv=dv, dbias=dbias)
    _call(f"regard_{energy}_backward", start, stop, tensors, scale=scale, softcap=softcap, **split)
    if energy == "distance":
        dk *= 2 * scale
    return _sum_chunks(dq, chunks), dk[..., : k.shape[3]], dv[..., : v.shape[3]], dbias


def additive_forward(
    a: Tensor,
    b: Tensor,
    w: Tensor,
    v: Tensor,
    start: Tensor,
    stop: Tensor,
    *,
    slopes: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Additive attention: out (B, H, Tq, Dv) and norm for the backward pass."""
    a, b, v, w = readable(a), readable(b), readable(v), w.resolve_neg().contiguous()
    slopes, bias = _readable_options(slopes, bias)
    out, norm = _empty_outputs(a, v)
    tensors = dict(q=a, k=b, v=v, w=w, out=out, norm=norm, slopes=slopes, bias=bias)
    _call("regard_additive_forward", start, stop, tensors, softcap=softcap)
    return out, norm


def additive_backward(
    grad: Tensor,
    a: Tensor,
    b: Tensor,
    w: Tensor,
    v: Tensor,
    out: Tensor,
    norm: Tensor,
    start: Tensor,
    stop: Tensor,
    *,
    slopes: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float = 0.0,
    bias_grad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of a, b, w, v and, with `bias_grad`, of bias (in its own shape)."""
    grad, a, b, out, v = readable(grad), readable(a), readable(b), readable(out), readable(v)
    w = w.resolve_neg().contiguous()
    slopes, bias = _readable_options(slopes, bias)
    dbias, split = _backward_split(a, b, bias if bias_grad else None)
    lanes = _lanes()
    db, dv = _padded(b, 2 * lanes), _padded(v, lanes)
    chunks = split["chunks"]
    da = a.new_empty(chunks * a.shape[0], *a.shape[1:])
    dw = w.new_zeros(chunks * a.shape[0], *w.shape)  # one per chunk and batch entry, then summed
    tensors = dict(q=a, k=b, v=v, w=w, out=out, norm=norm, slopes=slopes, bias=bias)
    tensors.update(grad=grad, dq=da, dk=db, dv=dv, dw=dw, dbias=dbias)
    _call("regard_additive_backward", start, stop, tensors, softcap=softcap, **split)
    return _sum_chunks(da, chunks), db[..., : b.shape[3]], dw.sum(0), dv[..., : v.shape[3]], dbias


def _readable_options(slopes: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    slopes = None if slopes is None else slopes.resolve_neg().contiguous()
    return slopes, None if bias is None else readable(bias)


def _backward_split(q: Tensor, k: Tensor, bias: Tensor | None) -> tuple[Tensor | None, dict[str, int]]:
    """Memory for the gradient of the bias, and how the backward pass is split into tasks for threads.

    Batch entries or heads that share a bias are one task: they add to the same gradient.
    """
    dbias = None if bias is None else bias.new_zeros(bias.shape)
    parallel_b = q.shape[0] if dbias is None or dbias.shape[0] > 1 else 1
    parallel_h = k.shape[1] if dbias is None or dbias.shape[1] > 1 else 1
    chunks = _chunks(parallel_b * parallel_h, k.shape[2])
    return dbias, dict(parallel_b=parallel_b, parallel_h=parallel_h, chunks=chunks)


def _lanes() -> int:
    """Floats in one SIMD vector of this machine."""
    loaded = library(_SOURCE)
    return 1 if isinstance(loaded, str) else loaded.regard_lanes()


def _sum_chunks(grads: Tensor, chunks: int) -> Tensor:
    return grads if chunks == 1 else grads.unflatten(0, (chunks, -1)).sum(0)
