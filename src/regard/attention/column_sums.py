"""Column sums of an attention matrix by our Triton kernels, which store no scores."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from regard.attention import kernel_inputs
from regard.attention.call import Call, signature
from regard.attention.energy import ScaledDot
from regard.attention.kernels import triton, triton_launch
from regard.attention.machine import Machine

MAX_PREPARED = 1024  # signatures to cache

_prepared: dict[Hashable, triton_launch.PreparedColumnSums] = {}


def column_sums_by_triton(call: Call) -> Tensor | None:
    """The attention that each key receives from all queries, (*leading, heads, Tk).

    None if the kernels do not support the call. Checks and launch arguments are cached by signature: on short
    inputs they take longer than the kernels.
    """
    if not call.query.is_cuda or call.edited is not None or not call.is_softmax:
        return None
    key = _cache_key(call)
    if key is not None and (prepared := _prepared.get(key)) is not None:
        return prepared(call.query, call.key, None)
    machine = Machine.of(call.query, call.key)
    if triton.Triton().refuses(call, machine) is not None:
        return None
    q, k, _, scale = kernel_inputs.dot_inputs(call, grouped=True)
    if scale <= 0 or k.shape[1] not in (call.heads, call.heads // call.groups):
        return None
    band = triton.band_of(call.mask, call)
    assert band is not None
    if key is not None and q is call.query and k is call.key and band.lengths is None:
        if len(_prepared) >= MAX_PREPARED:
            _prepared.clear()
        _prepared[key] = triton_launch.PreparedColumnSums(q, k, scale, band, triton.slopes_of(call))
        return _prepared[key](q, k, None)
    sums = triton_launch.banded_column_sums(q, k, scale, band, triton.slopes_of(call))
    return sums.view(*call.leading, call.heads, call.Tk)


def _cache_key(call: Call) -> Hashable | None:
    """A key for cached launches; None if the kernels cannot read the call's queries and keys as they are."""
    q, k = call.query, call.key
    if type(call.energy) is not ScaledDot or len(call.leading) != 1:
        return None
    if any(x.stride(-1) != 1 or x.is_neg() or x.data_ptr() % 16 for x in (q, k)):
        return None
    if torch._C._cuda_getDevice() != q.get_device():
        return None
    options = call.energy, call.mask, call.bias, call.normalize, call.gate, call.softcap, call.dropout
    call_signature = signature(q, k, call.value, *options, None)
    return None if call_signature is None else (call_signature, q.stride(), k.stride())
