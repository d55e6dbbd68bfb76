"""Native CPU kernels for attention over runs of keys: built with the machine's C++ compiler on first
use, kept in a cache folder, called through ctypes.  Plain functions on float32 tensors, no autograd.

Query i of batch b sees the keys ``start[b, i] <= j < stop[b, i]``; with energies ``s_ij``

    out_i = sum_j p_ij v_j,    p_ij = exp(s_ij - level_i) / sum_j exp(s_ij - level_i)

    distance:  as dot, with -|q_i - k_j|^2 for q_i . k_j
    dot:       s_ij = cap(scale * q_i . k_j - slope_h * |i + Tk - Tq - j| + bias_ij),
               cap(s) = softcap * tanh(s / softcap), or s when softcap is 0
    additive:  s_ij = cap(sum_d w_hd * tanh(a_id + b_jd) - slope_h * |i + Tk - Tq - j| + bias_ij)

and, with g the gradient of out, ``dv_j = sum_i p_ij g_i`` and ``ds_ij = p_ij (g_i . v_j - g_i . out_i)``.
`norm` keeps level and 1 / sum of each row for the backward pass. A row that sees no key gives 0 and no gradient.
``native.cpp`` explains the computation.
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
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("sb", ctypes.c_int64),
        ("sh", ctypes.c_int64),
        ("st", ctypes.c_int64),
    ]


_SIZES = ["B", "H", "Hk", "Tq", "Tk", "D", "Dv", "threads", "run_sb", "chunks", "own_b", "own_h"]
_POINTERS = ["start", "stop", "slopes", "w"]
_TENSORS = ["q", "k", "v", "out", "norm", "bias", "grad", "dq", "dk", "dv", "dbias", "dw"]


class _Call(ctypes.Structure):
    """The struct Call of native.cpp, field by field."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in _SIZES]
        + [("scale", ctypes.c_double), ("softcap", ctypes.c_double)]
        + [(name, ctypes.c_void_p) for name in _POINTERS]
        + [(name, _Strided) for name in _TENSORS]
    )


def unavailable() -> str | None:
    """None when the kernels can be used (they are built now if need be), otherwise why not."""
    loaded = library(_SOURCE)
    return loaded if isinstance(loaded, str) else None


# --------------------------------------------------------------------------------------- calling
def _strided(x: Tensor) -> _Strided:
    """Address and strides of a tensor of 3 or 4 dimensions; one batch or head may stand for all."""
    sb, sh, st = x.stride()[:3]
    return _Strided(x.data_ptr(), 0 if x.shape[0] == 1 else sb, 0 if x.shape[1] == 1 else sh, st)


def _call(
    name: str, start: Tensor, stop: Tensor, tensors: Mapping[str, Tensor | None], **more: float
) -> None:
    reason = unavailable()
    if reason is not None:
        raise RuntimeError(f"the native kernels cannot be used: {reason}")
    given = {key: x for key, x in tensors.items() if x is not None}
    for key, x in given.items():
        if x.dtype != torch.float32 or x.device.type != "cpu":
            raise TypeError(
                f"native kernels take float32 tensors on the CPU; {key} is {x.dtype} on {x.device}"
            )
    (B, H, Tq, D), (_, Hk, Tk, Dv) = given["q"].shape, given["v"].shape
    start, stop = start.to(torch.int32).contiguous(), stop.to(torch.int32).contiguous()
    call = _Call(B=B, H=H, Hk=Hk, Tq=Tq, Tk=Tk, D=D, Dv=Dv, threads=torch.get_num_threads(), chunks=1)
    call.own_b, call.own_h = B, Hk
    call.start, call.stop = start.data_ptr(), stop.data_ptr()
    call.run_sb = Tq if start.shape[0] > 1 else 0
    for key, x in given.items():
        setattr(call, key, x.data_ptr() if key in _POINTERS else _strided(x))
    for key, value in more.items():
        setattr(call, key, value)
    check_code(getattr(library(_SOURCE), name)(ctypes.byref(call)), "attention")


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    (B, H, Tq, _), Dv = q.shape, v.shape[3]
    return q.new_empty(B, Tq, H, Dv).transpose(1, 2), q.new_empty(B, H, 2, Tq)


def _chunks(owners: int, Tk: int) -> int:
    """Into how many parts the backward cuts the keys so that threads have work to share.

    The number of threads plays no part: it must not change how sums are rounded.
    """
    return max(1, min(-(-16 // max(owners, 1)), Tk // 128))


def _padded(x: Tensor, step: int) -> Tensor:
    """Room for the gradient of x, rows rounded up to whole steps so that kernels need no tail."""
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
    """Attention with dot products or distances: out (B, H, Tq, Dv) and what the backward pass needs."""
    q, k, v = readable(q), readable(k), readable(v)
    slopes, bias = _extras(slopes, bias)
    out, norm = _outputs(q, v)
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
    """Gradients of q, k, v and, if asked for, of bias (in its own shape)."""
    grad, q, out, k, v = readable(grad), readable(q), readable(out), readable(k), readable(v)
    slopes, bias = _extras(slopes, bias)
    dbias, own_b, own_h, chunks = _owners(q, k, bias if bias_grad else None)
    lanes = _lanes()
    dk, dv = _padded(k, lanes), _padded(v, lanes)
    dq = q.new_empty(chunks * q.shape[0], *q.shape[1:])
    tensors = dict(q=q, k=k, v=v, out=out, norm=norm, slopes=slopes, bias=bias)
    tensors.update(grad=grad, dq=dq, dk=dk, dv=dv, dbias=dbias)
    more = dict(scale=scale, softcap=softcap, chunks=chunks, own_b=own_b, own_h=own_h)
    _call(f"regard_{energy}_backward", start, stop, tensors, **more)
    if energy == "distance":
        dk *= 2 * scale
    return _added(dq, chunks), dk[..., : k.shape[3]], dv[..., : v.shape[3]], dbias


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
    """Additive attention: out (B, H, Tq, Dv) and what the backward pass needs."""
    a, b, v, w = readable(a), readable(b), readable(v), w.resolve_neg().contiguous()
    slopes, bias = _extras(slopes, bias)
    out, norm = _outputs(a, v)
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
    """Gradients of a, b, w, v and, if asked for, of bias (in its own shape)."""
    grad, a, b, out, v = readable(grad), readable(a), readable(b), readable(out), readable(v)
    w = w.resolve_neg().contiguous()
    slopes, bias = _extras(slopes, bias)
    dbias, own_b, own_h, chunks = _owners(a, b, bias if bias_grad else None)
    lanes = _lanes()
    db, dv = _padded(b, 2 * lanes), _padded(v, lanes)
    da = a.new_empty(chunks * a.shape[0], *a.shape[1:])
    dw = w.new_zeros(chunks * a.shape[0], *w.shape)  # one for each part of the work, then added up
    tensors = dict(q=a, k=b, v=v, w=w, out=out, norm=norm, slopes=slopes, bias=bias)
    tensors.update(grad=grad, dq=da, dk=db, dv=dv, dw=dw, dbias=dbias)
    more = dict(softcap=softcap, chunks=chunks, own_b=own_b, own_h=own_h)
    _call("regard_additive_backward", start, stop, tensors, **more)
    return _added(da, chunks), db[..., : b.shape[3]], dw.sum(0), dv[..., : v.shape[3]], dbias


def _extras(slopes: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return None if slopes is None else slopes.resolve_neg().contiguous(), None if bias is None else readable(
        bias
    )


def _owners(q: Tensor, k: Tensor, bias: Tensor | None) -> tuple[Tensor | None, int, int, int]:
    """Room for the gradient of the bias, and how the backward pass is cut: batches, key heads, chunks of keys.

    Parts of the bias that several batches or heads add to belong to a single thread.
    """
    dbias = None if bias is None else bias.new_zeros(bias.shape)
    own_b = q.shape[0] if dbias is None or dbias.shape[0] > 1 else 1
    own_h = k.shape[1] if dbias is None or dbias.shape[1] > 1 else 1
    return dbias, own_b, own_h, _chunks(own_b * own_h, k.shape[2])


def _lanes() -> int:
    """Floats in one vector of this machine."""
    loaded = library(_SOURCE)
    return 1 if isinstance(loaded, str) else loaded.regard_lanes()


def _added(parts: Tensor, chunks: int) -> Tensor:
    return parts if chunks == 1 else parts.unflatten(0, (chunks, -1)).sum(0)
