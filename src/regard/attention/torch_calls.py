"""torch's own attention, seen while it is called: SDPA and multi-head attention as calls of regard's operator.

A `TorchFunctionMode` is active inside `watch` only. It hands every function of torch on unchanged, so the model computes what
it did; it also switches torch's inference fast paths off (as any mode does), which would hide the attention inside one operator.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

from regard.attention import watching
from regard.attention.bias import Bias, DenseBias
from regard.attention.call import SCALED_DOT, Call, make_call
from regard.attention.energy import Dot
from regard.attention.mask import Dense, Mask
from regard.attention.position_masks import Causal
from regard.attention.torch_modes import transform


class _Mode(TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        self.calls += 1
        make = MAKERS.get(func)
        if make is not None:
            _record(make, args, kwargs)
        else:
            _notice(func, args, kwargs)
        return func(*args, **kwargs)


_here = threading.local()


@contextmanager
def mode() -> Iterator[None]:
    """One mode per thread, however many watches there are."""
    depth = getattr(_here, "depth", 0)
    if not depth:
        _here.mode = getattr(_here, "mode", None) or _Mode()
        _here.mode.__enter__()
    _here.depth = depth + 1
    try:
        yield
    finally:
        _here.depth -= 1
        if not _here.depth:
            _here.mode.__exit__(None, None, None)


def count() -> int:
    """How many functions of torch the mode of this thread has seen so far."""
    return _here.mode.calls if hasattr(_here, "mode") else 0


@contextmanager
def paused() -> Iterator[None]:
    """Without the mode, if it is the innermost: a compiled kernel would be compiled anew for it."""
    if isinstance(_get_current_function_mode(), _Mode):
        with _pop_mode_temporarily():
            yield
    else:
        yield


def _record(make: Callable[..., Call], args: tuple, kwargs: dict) -> None:
    wanted = []
    for watch in watching.observers():
        name = watch.next_name(_kind(make, args, kwargs))
        if watch.wants(name):
            wanted.append((watch, name))
    if not wanted:
        return
    reason = transform()
    try:
        call = None if reason is not None else make(*args, **kwargs)
    except Exception as error:  # watching must not break a model; if its call is wrong, that says so itself
        call, reason = None, (str(error) or type(error).__name__).splitlines()[0]
    for watch, name in wanted:
        if call is None:
            watch.missed[name] = f"this call cannot be recorded ({reason})"
        else:
            watch.take(name, call)


def _notice(func: Any, args: tuple, kwargs: dict) -> None:
    """Remember attention that cannot be recorded, to say so when it is asked for."""
    name = getattr(func, "__name__", "")
    if "softmax" in name:
        x = args[0] if args else kwargs.get("input")
        if isinstance(x, Tensor) and x.ndim > 2:
            for watch in watching.observers():
                watch.softmaxes.setdefault(
                    watch.path() or "the model", f"softmax of a {tuple(x.shape)} tensor"
                )
    elif ("attention" in name or "attn" in name) and not name.startswith("__"):
        for watch in watching.observers():
            watch.missed[watch.path() or "the model"] = (
                f"{name} was called, which watch does not see; use F.scaled_dot_product_attention or regard.attend"
            )


# ---------------------------------------------------------------------------------------------------------------------- SDPA
def _of_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    mask: Mask | None = Causal(offset=0) if is_causal else None
    bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = Dense(attn_mask)
    elif attn_mask is not None:
        bias = DenseBias(attn_mask)
    energy = SCALED_DOT if scale is None else Dot(float(scale))
    return make_call(query, key, value, energy=energy, mask=mask, bias=bias)


# ------------------------------------------------------------------------------------------------------ nn.MultiheadAttention
_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def _kind(make: Callable[..., Call], args: tuple, kwargs: dict) -> str | None:
    """What an nn.MultiheadAttention that is watched itself is called, as it has no path."""
    if make is not _of_multi_head:
        return None
    bound = _SIGNATURE.bind_partial(*args, **kwargs).arguments
    return "self" if bound.get("query") is bound.get("key") else "cross"


def _of_multi_head(*args: Any, **kwargs: Any) -> Call:
    """The attention inside `F.multi_head_attention_forward`: its queries and keys are projected once more."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    a = bound.arguments
    query, key = a["query"], a["key"]
    batched = query.ndim == 3
    if not batched:
        query, key = query[:, None], key[:, None]  # (T, 1, dim)
    with torch.no_grad():
        heads = a["num_heads"]
        q, k = _project(query, key, a)
        q = _per_head(q, heads)
        k = _per_head(k, heads) if a["static_k"] is None else a["static_k"].unflatten(0, (-1, heads))
        extra = 0
        if a["bias_k"] is not None:
            k, extra = (
                torch.cat([k, _per_head(a["bias_k"].to(k.dtype), heads).expand(len(k), -1, -1, -1)], -2),
                1,
            )
        if a["add_zero_attn"]:
            k, extra = torch.nn.functional.pad(k, (0, 0, 0, 1)), extra + 1
        mask, bias = _masks(a, len(q), heads, extra)
    if not batched:
        q, k = q[0], k[0]
    return make_call(q, k, k, mask=mask, bias=bias)


def _project(query: Tensor, key: Tensor, a: dict[str, Any]) -> tuple[Tensor, Tensor]:
    dim = query.shape[-1]
    if a["use_separate_proj_weight"]:
        weights = (a["q_proj_weight"], a["k_proj_weight"])
    else:
        weights = a["in_proj_weight"][:dim], a["in_proj_weight"][dim : 2 * dim]
    bias = a["in_proj_bias"]
    biases = (None, None) if bias is None else (bias[:dim], bias[dim : 2 * dim])
    return F.linear(query, weights[0], biases[0]), F.linear(key, weights[1], biases[1])


def _per_head(x: Tensor, heads: int) -> Tensor:
    """(T, batch, dim) → (batch, heads, T, dim / heads)."""
    return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def _masks(a: dict[str, Any], batch: int, heads: int, extra: int) -> tuple[Mask | None, Bias | None]:
    """attn_mask and key_padding_mask in regard's form; torch's boolean ones are True where attention is forbidden."""
    given = a["attn_mask"], a["key_padding_mask"]
    if a["is_causal"] and not a["need_weights"] and given[1] is None:
        return Causal(offset=0), None  # torch then takes attn_mask for a hint
    mask: Mask | None = None
    bias: Tensor | None = None
    for x, is_padding in zip(given, (False, True), strict=True):
        if x is None:
            continue
        if is_padding:
            x = x[:, None, None, :] if x.ndim == 2 else x  # (batch, 1, 1, keys)
        elif x.ndim == 3:
            x = x.unflatten(0, (batch, heads)) if a["query"].ndim == 3 else x
        x = F.pad(x, (0, extra)) if extra else x  # what torch appends to the keys is seen by all
        if x.dtype == torch.bool:
            mask = Dense(~x) if mask is None else mask & Dense(~x)
        else:
            bias = x if bias is None else bias + x
    return mask, None if bias is None else DenseBias(bias)


MAKERS: dict[Any, Callable[..., Call]] = {
    F.scaled_dot_product_attention: _of_sdpa,
    torch.ops.aten.scaled_dot_product_attention.default: _of_sdpa,
    torch.ops.aten.scaled_dot_product_attention: _of_sdpa,
    F.multi_head_attention_forward: _of_multi_head,
}
