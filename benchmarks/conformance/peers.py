"""Attention functions of other libraries behind one signature, each by its documented call.

All take (query, key, value, mask=None, bias=None, causal=False) on (..., heads, time, dim). mask is boolean,
True where attention is allowed; bias is added to the scores; causal comes without a mask and with as many
queries as keys. An adapter raises Refused for what its library does not offer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.conformance import Refused
from regard.conformance.backends import torch_sdpa

Attention = Callable[..., Tensor]


# ------------------------------------------------------------------------------------------------------ torch
def sdpa_math(query, key, value, mask=None, bias=None, causal=False):
    """torch's SDPA with its plain C++ implementation."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch_sdpa(query, key, value, mask, bias, causal)


def flex(query, key, value, mask=None, bias=None, causal=False):
    """torch.compile(flex_attention); mask_mod and score_mod read dense tensors. No backward pass on a CPU."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    traced = torch.compiler.is_compiling()
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
    if not traced and any(map(wrapped, (query, key, value))):
        raise Refused("on a CPU it runs without gradients, and has no vmap")
    _four_axes(query, key, value)
    if key.shape[:3] != value.shape[:3]:
        raise Refused("it documents one shape (batch, heads, time) for keys and values")
    B, H, Tq, Tk = _sizes(query, key)
    query, key, value = (x.detach() for x in (query, key, value))
    allowed, added = _full(mask, B, H, Tq, Tk), None if bias is None else bias.detach().expand(B, H, Tq, Tk)
    mask_mod = (
        (lambda b, h, i, j: i >= j)
        if causal
        else None
        if allowed is None
        else (lambda b, h, i, j: allowed[b, h, i, j])
    )
    score_mod = None if added is None else (lambda score, b, h, i, j: score + added[b, h, i, j])
    block = None
    if mask_mod is not None:
        block = create_block_mask(mask_mod, B, H, Tq, Tk, device=str(query.device))
    flex_function = flex_attention if traced else _compiled_flex()
    return flex_function(
        query, key, value, score_mod=score_mod, block_mask=block, enable_gqa=key.shape[1] != H
    )


@cache
def _compiled_flex() -> Attention:
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def multihead(query, key, value, mask=None, bias=None, causal=False):
    """torch.nn.MultiheadAttention with identity projections, by its documented call (with weights)."""
    if query.ndim not in (3, 4):
        raise Refused("it takes (batch, time, features) or (time, features)")
    if query.shape[:-2] != key.shape[:-2] or key.shape[:-2] != value.shape[:-2]:
        raise Refused("it has as many key heads as query heads, and one batch size")
    if query.shape[-1] != value.shape[-1]:
        raise Refused("its heads have one size for keys and values")
    H, D = query.shape[-3], query.shape[-1]
    layer = MULTIHEAD.get((H, D, query.dtype, query.device)) or _multihead(H, D, query.dtype, query.device)
    batch, Tq, Tk = query.shape[:-3], query.shape[-2], key.shape[-2]
    if causal and bias is not None:
        mask, causal = _lower_triangle(query, key), False
    hidden = None  # in its masks True means: not allowed
    if causal:
        hidden = torch.ones(Tq, Tk, dtype=torch.bool, device=query.device).triu(1)
    elif bias is not None:
        hidden = bias.to(query.dtype) if mask is None else bias.to(query.dtype).masked_fill(~mask, -torch.inf)
    elif mask is not None:
        hidden = ~mask
    padding = None
    if (
        hidden is not None
        and hidden.ndim == 4
        and hidden.shape[1] == 1
        and hidden.stride(2) == 0
        and bias is None
    ):
        padding, hidden = hidden[:, 0, 0].expand(*batch, Tk), None
    elif hidden is not None:
        hidden = (
            hidden.expand(Tq, Tk)
            if hidden.ndim <= 2
            else hidden.expand(*batch, H, Tq, Tk).reshape(-1, Tq, Tk)
        )
    merged = {id(x): x.transpose(-3, -2).flatten(-2) for x in (query, key, value)}  # (..., time, heads · dim)
    q, k, v = (merged[id(x)] for x in (query, key, value))  # one tensor in self-attention, for its fast path
    out, _ = layer(q, k, v, key_padding_mask=padding, attn_mask=hidden, is_causal=causal)
    return out.unflatten(-1, (H, D)).transpose(-3, -2)


MULTIHEAD: dict[tuple, torch.nn.MultiheadAttention] = {}


def _multihead(H: int, D: int, dtype: torch.dtype, device: torch.device) -> torch.nn.MultiheadAttention:
    with torch.inference_mode(False):
        layer = (
            torch.nn.MultiheadAttention(H * D, H, batch_first=True, dtype=dtype, device=device)
            .requires_grad_(False)
            .eval()
        )
        identity = torch.eye(H * D, dtype=dtype, device=device)
        layer.in_proj_weight.copy_(identity.repeat(3, 1))
        layer.out_proj.weight.copy_(identity)
        layer.in_proj_bias.zero_()
        layer.out_proj.bias.zero_()
    MULTIHEAD[H, D, dtype, device] = layer
    return layer


def _make_multihead() -> Attention:
    for H, D in product((1, 2, 3, 4), (8, 16, 20, 32)):  # a layer cannot be made while a call is traced
        _multihead(H, D, torch.float32, torch.device("cpu"))
    return multihead


# -------------------------------------------------------------------------------------------------- libraries
def _make_x_transformers(flash: bool) -> Attention:
    """x_transformers.attend.Attend. Its groups interleave: query head h reads key head h mod Hk."""
    from x_transformers.attend import Attend

    layers = {causal: Attend(causal=causal, flash=flash) for causal in (False, True)}

    def attend(query, key, value, mask=None, bias=None, causal=False):
        _four_axes(query, key, value)
        if query.dtype == torch.float64 and not flash:
            raise Refused("its softmax is written to compute in float32")
        B, H, Tq, Tk = _sizes(query, key)
        bias = None if bias is None else bias.to(query.dtype)
        mask, bias, Hk = _full(mask, B, H, Tq, Tk), _full(bias, B, H, Tq, Tk), key.shape[1]
        grouped = 1 < Hk < H
        if grouped:
            query, mask, bias = (_regroup(x, Hk) for x in (query, mask, bias))
        out = layers[causal](query, key, value, mask=mask, attn_bias=bias)[0]
        return _regroup(out, H // Hk) if grouped else out

    return attend


def _regroup(x: Any, groups: int) -> Any:
    return None if x is None else x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def _make_keras() -> Attention:
    """keras.ops.dot_product_attention on torch; given a bias, it adds the mask to it, as documented."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    if keras.backend.backend() != "torch":
        raise ModuleNotFoundError(f"keras runs on {keras.backend.backend()}: set KERAS_BACKEND=torch")

    def attend(query, key, value, mask=None, bias=None, causal=False):
        _four_axes(query, key, value)
        if key.shape != value.shape:
            raise Refused("it documents that values have the shape of keys")
        if query.shape[0] != key.shape[0] or query.shape[1] % max(1, key.shape[1]):
            raise Refused("it documents one batch size, and query heads that are a multiple of key heads")
        if query.dtype == torch.float64:
            raise Refused("it computes float64 in float32, and returns float32")
        if causal and bias is not None:
            mask, causal = _lower_triangle(query, key), False
        if bias is not None and mask is not None:
            bias, mask = bias.masked_fill(~mask, -torch.inf), None
        B, H, Tq, Tk = _sizes(query, key)
        mask, bias = _full(mask, B, H, Tq, Tk), _full(bias, B, H, Tq, Tk)
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))  # (B, T, heads, dim)
        out = keras.ops.dot_product_attention(query, key, value, bias=bias, mask=mask, is_causal=causal)
        return out.transpose(1, 2)  # type: ignore[union-attr]

    return attend


def _make_transformers() -> Attention:
    """transformers' eager attention of Llama, with its additive mask (the lowest finite number)."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    # The two attributes of its layer that the function reads.
    modules: dict[int, Any] = {
        n: SimpleNamespace(num_key_value_groups=n, training=False) for n in range(1, 9)
    }

    def attend(query, key, value, mask=None, bias=None, causal=False):
        _four_axes(query, key, value)
        if query.dtype == torch.float64:
            raise Refused("its softmax is written to compute in float32")
        H, Hk = query.shape[1], key.shape[1]
        if Hk == 0 or H % Hk or value.shape[1] != Hk or query.shape[0] != key.shape[0]:
            raise Refused("query heads are a multiple of key heads, with one batch size")
        if causal:
            mask = _lower_triangle(query, key)
        if mask is not None:
            least = torch.finfo(query.dtype).min
            zero = torch.zeros((), dtype=query.dtype, device=query.device)
            bias = torch.where(mask, zero if bias is None else bias.to(query.dtype), least)
        out, _ = eager_attention_forward(
            modules[H // Hk], query, key, value, bias, scaling=query.shape[-1] ** -0.5
        )
        return out.transpose(1, 2)

    return attend


def _four_axes(*tensors: Tensor) -> None:
    if any(x.ndim != 4 for x in tensors):
        raise Refused("it takes (batch, heads, time, dim)")


def _sizes(query: Tensor, key: Tensor) -> tuple[int, int, int, int]:
    return max(query.shape[0], key.shape[0]), max(query.shape[1], key.shape[1]), query.shape[2], key.shape[2]


def _lower_triangle(query: Tensor, key: Tensor) -> Tensor:
    return torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()


def _full(x: Tensor | None, *shape: int) -> Tensor | None:
    return None if x is None else x.expand(shape)


# name → (loader, package whose version is shown). A missing package raises ModuleNotFoundError.
PEERS: dict[str, tuple[Callable[[], Attention], str]] = {
    "SDPA": (lambda: torch_sdpa, "torch"),
    "SDPA, MATH": (lambda: sdpa_math, "torch"),
    "Flex": (lambda: flex, "torch"),
    "nn.MultiheadAttention": (_make_multihead, "torch"),
    "x-transformers": (lambda: _make_x_transformers(flash=False), "x-transformers"),
    "x-transformers, flash": (lambda: _make_x_transformers(flash=True), "x-transformers"),
    "Keras": (_make_keras, "keras"),
    "transformers, eager": (_make_transformers, "transformers"),
}


@lru_cache
def peer(name: str) -> Attention:
    """The attention function of a peer by its name in PEERS."""
    return PEERS[name][0]()
