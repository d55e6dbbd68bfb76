"""Record torch's own attention, SDPA and multi-head attention, as calls of regard's operator.

A `TorchFunctionMode` intercepts torch functions while a `watch` is active. It passes every function on
unchanged, so the model's results do not change. Any such mode also disables torch's inference fast paths,
which would hide the attention inside one fused operator.
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
from regard.attention.tracing import transform


class _Interceptor(TorchFunctionMode):
    functions_seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        self.functions_seen += 1
        convert = CONVERTERS.get(func)
        if convert is not None:
            _record(convert, args, kwargs)
        else:
            _note_unrecorded(func, args, kwargs)
        return func(*args, **kwargs)


_thread = threading.local()  # mode: the thread's interceptor; depth: how many watches use it


@contextmanager
def interception() -> Iterator[None]:
    """Intercept torch functions in this thread, with one mode for all nested watches."""
    depth = getattr(_thread, "depth", 0)
    if not depth:
        _thread.mode = getattr(_thread, "mode", None) or _Interceptor()
        _thread.mode.__enter__()
    _thread.depth = depth + 1
    try:
        yield
    finally:
        _thread.depth -= 1
        if not _thread.depth:
            _thread.mode.__exit__(None, None, None)


def functions_seen() -> int:
    """The number of torch functions intercepted in this thread so far."""
    return _thread.mode.functions_seen if hasattr(_thread, "mode") else 0


@contextmanager
def paused() -> Iterator[None]:
    """Suspend the mode if it is the innermost: it would make a compiled kernel recompile."""
    if isinstance(_get_current_function_mode(), _Interceptor):
        with _pop_mode_temporarily():
            yield
    else:
        yield


def _record(convert: Callable[..., Call], args: tuple, kwargs: dict) -> None:
    targets = []
    for watch in watching.interception_targets():
        name = watch.next_name(_kind(convert, args, kwargs))
        if watch.wants(name):
            targets.append((watch, name))
    if not targets:
        return
    reason = transform()
    try:
        call = None if reason is not None else convert(*args, **kwargs)
    except Exception as error:  # watching must not break a model; an invalid call raises its own error
        call, reason = None, (str(error) or type(error).__name__).splitlines()[0]
    for watch, name in targets:
        if call is None:
            watch.missed[name] = f"this call cannot be recorded ({reason})"
        else:
            watch.add(name, call)


def _note_unrecorded(func: Any, args: tuple, kwargs: dict) -> None:
    """Remember functions that look like attention and cannot be recorded, for error messages."""
    name = getattr(func, "__name__", "")
    if "softmax" in name:
        x = args[0] if args else kwargs.get("input")
        if isinstance(x, Tensor) and x.ndim > 2:
            for watch in watching.interception_targets():
                path = watch.current_path() or "the model"
                watch.softmaxes.setdefault(path, f"softmax of a {tuple(x.shape)} tensor")
    elif ("attention" in name or "attn" in name) and not name.startswith("__"):
        for watch in watching.interception_targets():
            watch.missed[watch.current_path() or "the model"] = (
                f"{name} was called, which watch does not see; "
                "use F.scaled_dot_product_attention or regard.attend"
            )


# ------------------------------------------------------------------------------------------------------- SDPA
def _from_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """The arguments of `F.scaled_dot_product_attention` as a call."""
    mask: Mask | None = Causal(offset=0) if is_causal else None
    bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = Dense(attn_mask)
    elif attn_mask is not None:
        bias = DenseBias(attn_mask)
    energy = SCALED_DOT if scale is None else Dot(float(scale))
    return make_call(query, key, value, energy=energy, mask=mask, bias=bias)


# -------------------------------------------------------------------------------------- nn.MultiheadAttention
_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def _kind(convert: Callable[..., Call], args: tuple, kwargs: dict) -> str | None:
    """Name of an nn.MultiheadAttention that is the watched model itself, and so has no path."""
    if convert is not _from_multi_head:
        return None
    bound = _SIGNATURE.bind_partial(*args, **kwargs).arguments
    return "self" if bound.get("query") is bound.get("key") else "cross"


def _from_multi_head(*args: Any, **kwargs: Any) -> Call:
    """The attention inside `F.multi_head_attention_forward`; projects queries and keys a second time."""
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    a = bound.arguments
    query, key = a["query"], a["key"]  # (T, batch, dim)
    batched = query.ndim == 3
    if not batched:
        query, key = query[:, None], key[:, None]  # (T, 1, dim)
    with torch.no_grad():
        heads = a["num_heads"]
        q, k = _project(query, key, a)
        q = _split_heads(q, heads)
        k = _split_heads(k, heads) if a["static_k"] is None else a["static_k"].unflatten(0, (-1, heads))
        appended = 0  # keys that torch appends
        if a["bias_k"] is not None:
            bias_k = _split_heads(a["bias_k"].to(k.dtype), heads)  # (1, heads, 1, dim / heads)
            k, appended = torch.cat([k, bias_k.expand(len(k), -1, -1, -1)], -2), 1
        if a["add_zero_attn"]:
            k, appended = F.pad(k, (0, 0, 0, 1)), appended + 1
        mask, bias = _masks(a, len(q), heads, appended)
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


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(T, batch, dim) → (batch, heads, T, dim / heads)."""
    return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)


def _masks(a: dict[str, Any], batch: int, heads: int, appended: int) -> tuple[Mask | None, Bias | None]:
    """attn_mask and key_padding_mask as mask and bias; torch's are True where attention is forbidden."""
    attn_mask, padding = a["attn_mask"], a["key_padding_mask"]
    if a["is_causal"] and not a["need_weights"] and padding is None:
        return Causal(offset=0), None  # torch then treats attn_mask as a hint
    if padding is not None and padding.ndim == 2:
        padding = padding[:, None, None, :]  # (batch, 1, 1, keys)
    if attn_mask is not None and attn_mask.ndim == 3 and a["query"].ndim == 3:
        attn_mask = attn_mask.unflatten(0, (batch, heads))  # (batch, heads, Tq, Tk)
    mask: Mask | None = None
    bias: Tensor | None = None
    for x in (attn_mask, padding):
        if x is None:
            continue
        x = F.pad(x, (0, appended)) if appended else x  # appended keys are visible to all queries
        if x.dtype == torch.bool:
            mask = Dense(~x) if mask is None else mask & Dense(~x)
        else:
            bias = x if bias is None else bias + x
    return mask, None if bias is None else DenseBias(bias)


CONVERTERS: dict[Any, Callable[..., Call]] = {
    F.scaled_dot_product_attention: _from_sdpa,
    torch.ops.aten.scaled_dot_product_attention.default: _from_sdpa,
    torch.ops.aten.scaled_dot_product_attention: _from_sdpa,
    F.multi_head_attention_forward: _from_multi_head,
}
