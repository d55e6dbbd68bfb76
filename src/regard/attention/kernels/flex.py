"""torch's FlexAttention: one compiled kernel for any mask and bias of positions.

It needs torch.compile (a C++ compiler on a CPU, Triton on a GPU), so it is never the only way. On a CPU it has no backward pass.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.grid import Point
from regard.attention.machine import Machine
from regard.attention.normalize import Softmax

NAME = "flex"


def why_not(call: Call, machine: Machine) -> str | None:
    if machine.kind not in ("cpu", "cuda"):
        return f"Flex runs on CPUs and CUDA, not on {machine.kind}"
    if machine.compiling:
        return "the call is being compiled already"
    if not isinstance(call.normalize, Softmax):
        return f"Flex normalises by softmax only, not by {type(call.normalize).__name__}"
    if call.gate is not None or call.dropout:
        return "Flex has no gate and no dropout"
    if len(call.leading) > 1:
        return "Flex takes one batch axis"
    if call.dtype == torch.float64:
        return "Flex does not compute in float64"
    if call.dot is None:
        return f"{type(call.energy).__name__} is not a dot product here"
    if call.bias is not None and (call.bias.uses_query or call.bias_learns):
        return "the bias learns or depends on the query"
    if machine.kind == "cpu" and call.learns:
        return "on a CPU Flex has no backward pass"
    if not (call.Tq and call.Tk and call.sequences):
        return "there is nothing to compute"
    if machine.kind == "cuda" and call.dot.query.shape[-1] < 16:
        return "on a GPU Flex needs vectors of at least 16 components"
    return None


@lru_cache(maxsize=1)
def _compiled():  # noqa: ANN202
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def run(call: Call, machine: Machine) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask

    assert call.dot is not None and isinstance(call.normalize, Softmax)
    query, key, scale = call.dot
    q, k, v = call.four(query), call.four(call.as_many_heads(key)), call.four(call.as_many_heads(call.value))
    Tq, Tk, mask, bias, temperature, cap = call.Tq, call.Tk, call.mask, call.bias, call.normalize.temperature, call.softcap
    rows = None

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert mask is not None
        return mask.allowed(Point(b, h, i, j, Tq, Tk))

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if bias is not None:
            s = s + bias.values(Point(b, h, i, j, Tq, Tk), s)
        return (s if cap is None else cap * torch.tanh(s / cap)) / temperature

    plain = bias is None and cap is None
    block = None
    if mask is not None:
        shape = mask.allowed(call.grid()).shape
        B, H = (shape[0] if len(shape) == 4 else 1), (shape[-3] if len(shape) > 2 else 1)
        block = create_block_mask(seen, B if B > 1 else None, H if H > 1 else None, Tq, Tk, device=q.device)
        rows = mask.allowed(call.grid()).any(-1, keepdim=True)
        k, v = (_only_seen(call, x) for x in (k, v))
    out = _compiled()(
        q, k.contiguous(), v.contiguous(), score_mod=None if plain else score, block_mask=block,
        scale=scale / temperature if plain else scale,
    )  # fmt: skip
    return call.back(out if rows is None else out.masked_fill(~rows, 0.0))


def _only_seen(call: Call, x: Tensor) -> Tensor:
    assert call.mask is not None
    seen = call.mask.allowed(call.grid())
    seen = seen.expand(*seen.shape[:-2], call.Tq, call.Tk).any(-2)[..., None]
    return x.masked_fill(~seen, 0.0)
