"""Record torch's own attention, SDPA and multi-head attention, as calls of regard's operator; edit it.

A `TorchFunctionMode` intercepts torch functions while a `watch` or an `intervene` is active. It passes on
every function that no intervention matches unchanged, so watching does not change the model's results. Any
such mode also disables torch's inference fast paths, which would hide the attention inside one fused
operator.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode_temporarily

from regard.attention import watching
from regard.attention.bias import Bias, DenseBias
from regard.attention.call import SCALED_DOT, Call, make_call
from regard.attention.energy import Dot
from regard.attention.kernels import reference
from regard.attention.mask import Dense, Mask
from regard.attention.position_masks import Causal
from regard.attention.tracing import transform
from regard.errors import OptionError


class _Interceptor(TorchFunctionMode):
    functions_seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if torch.compiler.is_compiling():  # code that is first compiled inside `watch`: leave it as it is
            return func(*args, **kwargs)
        self.functions_seen += 1
        convert = CONVERTERS.get(func)
        if convert is not None:
            return _run_observed(func, convert, args, kwargs)
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
    except AssertionError as error:
        if "NestedTensor outside of its fast path" in str(error) and "torch_function" in str(error):
            raise OptionError(
                "torch's layers take a nested tensor only in their fused fast path, which watch and "
                "intervene cannot see; pass x.to_padded_tensor(0.0) and a key_padding_mask "
                "(src_key_padding_mask in nn.TransformerEncoder)"
            ) from error
        raise
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


def _run_observed(func: Any, convert: Callable[..., Call], args: tuple, kwargs: dict) -> Any:
    """Record torch's attention and run it; if an intervention matches it, with edited weights."""
    targets = []
    for observer in watching.interception_targets():
        name = observer.next_name(_kind(convert, args, kwargs))
        if observer.wants(name):
            targets.append((observer, name))
    if any(observer.edits_calls for observer, _ in targets):
        return _run_edited(func, convert, args, kwargs, targets)
    if targets:
        _record(convert, args, kwargs, targets)
    return func(*args, **kwargs)


def _record(convert: Callable[..., Call], args: tuple, kwargs: dict, targets: watching.Targets) -> None:
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


def _run_edited(
    func: Any, convert: Callable[..., Call], args: tuple, kwargs: dict, targets: watching.Targets
) -> Any:
    """Run torch's attention with the weights that interventions set."""
    if (reason := transform()) is not None:
        raise OptionError(f"intervene cannot change {targets[0][1]}: {reason}")
    is_multi_head = convert is _from_multi_head
    with paused():
        arguments = _multi_head_arguments(*args, **kwargs) if is_multi_head else {}
        if is_multi_head:
            call = _multi_head_call(arguments, True)
        else:
            dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
            call = replace(convert(*args, **kwargs), dropout=dropout)
        call = watching.edited(call, targets)
        for observer, name in targets:
            observer.add(name, call)
    if call.edited is None:  # the edits select none of its rows
        return func(*args, **kwargs)
    with paused():
        out = reference.attend(call)
        if is_multi_head:
            return _multi_head_output(arguments, out, call.edited.to(call.dtype))
        return out.squeeze(-3) if call.squeeze_heads else out


def _note_unrecorded(func: Any, args: tuple, kwargs: dict) -> None:
    """Remember functions that look like attention and cannot be recorded, for error messages."""
    name = getattr(func, "__name__", "")
    if "softmax" in name:
        x = args[0] if args else kwargs.get("input")
        if isinstance(x, Tensor) and x.ndim > 2:
            for watch in watching.interception_targets():
                path = watch.current_path() or "the model"
                if path not in watch.softmaxes:
                    watch.softmaxes[path] = _hand_written(path, x)
    elif ("attention" in name or "attn" in name) and not name.startswith("__"):
        for watch in watching.interception_targets():
            watch.missed[watch.current_path() or "the model"] = (
                f"{name} was called, which {watch.verb} does not see; "
                "use F.scaled_dot_product_attention or regard.attend"
            )


def _hand_written(path: str, x: Tensor) -> str:
    """Report a softmax that looks like attention, with advice for the kind of model that runs."""
    model = _running_hugging_face_model()
    if model is None:
        advice = "call F.scaled_dot_product_attention or regard.attend there"
    elif model._can_set_attn_implementation():
        advice = (
            'call model.set_attn_implementation("sdpa"), '
            'or regard.huggingface.register() and model.set_attn_implementation("regard")'
        )
    else:
        advice = (
            f"{type(model).__name__} has its own attention code; "
            "model(…, output_attentions=True) gives its weights"
        )
    what = f"softmax of a {tuple(x.shape)} tensor"
    return f"{path} computes {what} itself, which looks like attention written out; {advice}"


def _running_hugging_face_model() -> Any:
    """The innermost Hugging Face model that runs, found on the call stack; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is torch.nn.Module._call_impl.__code__:
            module = frame.f_locals["self"]
            if hasattr(module, "_can_set_attn_implementation"):
                return module
        frame = frame.f_back
    return None


# ------------------------------------------------------------------------------------------------------- SDPA
def _from_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """The arguments of `F.scaled_dot_product_attention` as a call."""
    if attn_mask is not None and not isinstance(attn_mask, Tensor):  # a ModelMask of regard.huggingface
        attn_mask = attn_mask.tensor()
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
    with torch.no_grad():
        return _multi_head_call(_multi_head_arguments(*args, **kwargs), False)


def _multi_head_arguments(*args: Any, **kwargs: Any) -> dict[str, Any]:
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _multi_head_call(a: dict[str, Any], with_values: bool) -> Call:
    """The call of multi-head attention; without values, which weights do not need, keys replace them."""
    query, key, value = a["query"], a["key"], a["value"]  # (T, batch, dim)
    batched = query.ndim == 3
    if not batched:
        query, key, value = (x[:, None] for x in (query, key, value))  # (T, 1, dim)
    heads, (in_weights, in_biases) = a["num_heads"], _projections(a, query.shape[-1])
    q = _split_heads(F.linear(query, in_weights[0], in_biases[0]), heads)
    rows = {}  # keys and values, (batch, heads, Tk, dim / heads)
    for i, (name, x) in enumerate({"k": key, "v": value}.items() if with_values else [("k", key)], 1):
        given, extra = a[f"static_{name}"], a[f"bias_{name}"]
        y = F.linear(x, in_weights[i], in_biases[i]) if given is None else given
        y = _split_heads(y, heads) if given is None else y.unflatten(0, (-1, heads))
        if extra is not None:
            extra = _split_heads(extra.to(y.dtype), heads)  # (1, heads, 1, dim / heads)
            y = torch.cat([y, extra.expand(len(y), -1, -1, -1)], -2)
        rows[name] = F.pad(y, (0, 0, 0, 1)) if a["add_zero_attn"] else y
    appended = (a["bias_k"] is not None) + bool(a["add_zero_attn"])  # keys that torch appends
    mask, bias = _masks(a, len(q), heads, appended)
    k, v = rows["k"], rows.get("v", rows["k"])
    if not batched:
        q, k, v = q[0], k[0], v[0]
    dropout = a["dropout_p"] if with_values and a["training"] else 0.0
    return make_call(q, k, v, mask=mask, bias=bias, dropout=dropout)


def _multi_head_output(a: dict[str, Any], out: Tensor, weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """What `F.multi_head_attention_forward` returns: the projected output and the weights, if requested."""
    concatenated = out.transpose(-2, -3).flatten(-2)  # (batch, T, dim), or (T, dim)
    if concatenated.ndim == 3:
        concatenated = concatenated.transpose(0, 1)  # (T, batch, dim)
    out = F.linear(concatenated, a["out_proj_weight"], a["out_proj_bias"])
    if not a["need_weights"]:
        return out, None
    return out, weights.mean(-3) if a["average_attn_weights"] else weights


def _projections(a: dict[str, Any], dim: int) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
    """Weights and biases of the projections of queries, keys and values."""
    if a["use_separate_proj_weight"]:
        weights = (a["q_proj_weight"], a["k_proj_weight"], a["v_proj_weight"])
    else:
        weights = a["in_proj_weight"].split(dim)
    bias = a["in_proj_bias"]
    return weights, (None, None, None) if bias is None else bias.split(dim)


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
