"""torch's scaled_dot_product_attention, with the backend chosen on a GPU and the conventions kept.

Takes every energy that is a dot product of something, softmax (its temperature goes into the scale), any mask and any bias
that does not learn. A row with nothing to see is opened for SDPA and its output set to zero, so that no NaN arises in
either pass; keys that no query sees are zeroed first, so that nothing in them can leak.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.call import Call
from regard.attention.machine import Machine
from regard.attention.mask import Causal, Padding
from regard.attention.normalize import Softmax

HALF = (torch.float16, torch.bfloat16)
LONG = 512  # positions from which what is made for one shape, by cuDNN or by compiling Flex, is worth it on a GPU


def why_not(call: Call, machine: Machine) -> str | None:
    """One reason why SDPA cannot do this call, or None."""
    if not isinstance(call.normalize, Softmax):
        return f"SDPA normalises by softmax only, not by {type(call.normalize).__name__}"
    if call.softcap is not None:
        return "SDPA has no soft cap"
    if call.gate is not None:
        return "SDPA has no gate after the softmax"
    if call.bias_learns:
        return "the bias learns, and SDPA's fused kernels give it no gradient"
    if call.dropout and machine.kind == "cpu":
        return "on a CPU, SDPA with dropout runs its unfused path"
    if not (call.query.numel() and call.key.numel() and call.value.numel()):
        return "there is nothing to compute"
    if call.dot is None:
        return f"{type(call.energy).__name__} is not a dot product here"
    if call.bias is not None and call.bias.uses_query and call.learns:
        return "the bias depends on the query, and SDPA's fused kernels give it no gradient"
    return None


def backends(call: Call, machine: Machine) -> list[str]:
    """Which SDPA backends to try on a GPU, best first. cuDNN leads where it can, 1.75 × flash on Hopper; but it makes a plan for
    each new shape, half a second by public reports, and batches of sentences have a new one at nearly every step.
    """
    if machine.kind != "cuda":
        return []
    head_dim = max(call.dot.query.shape[-1], call.Dv) if call.dot is not None else call.Dv
    plain = call.bias is None and (call.mask is None or is_torch_causal(call))
    found = []
    if call.dtype in HALF and machine.capability >= (8, 0) and head_dim <= 128 and head_dim % 8 == 0:
        if machine.capability >= (9, 0) and min(call.Tq, call.Tk) >= LONG:
            found.append("CUDNN_ATTENTION")
        if plain and head_dim <= 256:
            found.append("FLASH_ATTENTION")
    return [*found, "EFFICIENT_ATTENTION", "MATH"]


def is_torch_causal(call: Call) -> bool:
    """Whether the mask is exactly torch's is_causal, which lines up the first query with the first key."""
    if not isinstance(call.mask, Causal):
        return False
    offset = call.mask.offset
    return call.Tq == call.Tk if offset is None else isinstance(offset, int) and offset == 0 and call.Tq <= call.Tk


def run(call: Call, machine: Machine) -> Tensor:
    assert call.dot is not None and isinstance(call.normalize, Softmax)
    query, key, scale = call.dot
    value = call.value
    groups = call.groups if key.shape[-3] != call.heads else 1
    if groups == 1:
        key, value = call.as_many_heads(key), call.as_many_heads(value)
    q, k, v = call.four(query), call.four(key), call.four(value)
    causal = is_torch_causal(call) and call.bias is None
    mask, rows = (None, None) if causal else _mask(call)
    if mask is not None and not _sound(call) and (call.mask is not None or call.bias_may_mask):
        k, v = only_seen(k, mask), only_seen(v, mask)
    options = dict(scale=scale / call.normalize.temperature, dropout_p=call.dropout)
    out = _sdpa(call, machine, q, k, v, mask if rows is None else _open(mask, rows), causal, groups > 1, options)
    return call.back(out if rows is None else out.masked_fill(~rows, 0.0))


def _sdpa(
    call: Call, machine: Machine, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, gqa: bool, options: dict
) -> Tensor:
    names = backends(call, machine)
    if not names or torch.compiler.is_compiling():
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=gqa, **options)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([getattr(SDPBackend, name) for name in names], set_priority=True):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=gqa, **options)


def _mask(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """The mask SDPA gets, boolean or a bias with −∞, and the rows that see anything (None: all do)."""
    grid = call.grid()
    allowed = None if call.mask is None else pairs(call, _whole(call, call.mask.allowed(grid)))
    if call.bias is None:
        return allowed, None if allowed is None or _sound(call) else allowed.any(-1, keepdim=True)
    assert call.dot is not None
    bias = pairs(call, _whole(call, call.bias.values(grid, call.query))) / temperature(call)
    if allowed is not None:
        bias = torch.where(allowed, bias, -math.inf)
    return bias, (bias > -math.inf).any(-1, keepdim=True)


def _sound(call: Call) -> bool:
    """Whether the mask promises that every row sees something, and that nothing could leak from what it does not see."""
    return isinstance(call.mask, Padding) and call.mask.sound and call.bias is None


def _whole(call: Call, x: Tensor) -> Tensor:
    return x.expand(*x.shape[:-2], call.Tq, call.Tk)


def temperature(call: Call) -> float:
    return call.normalize.temperature if isinstance(call.normalize, Softmax) else 1.0


def _open(mask: Tensor | None, rows: Tensor) -> Tensor | None:
    if mask is None:
        return None
    return mask | ~rows if mask.dtype == torch.bool else mask.masked_fill(~rows, 0.0)


def only_seen(x: Tensor, mask: Tensor) -> Tensor:
    """Keys or values, (B, heads or fewer, Tk, dim), with those that no query sees set to zero. mask: (B|1, H|1, Tq, Tk).

    Only what is not finite could leak, and on a CPU it is cheaper to look (a sum tells) than to copy.
    """
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and math.isfinite(float(x.detach().sum())):
        return x
    seen = (mask if mask.dtype == torch.bool else mask > -math.inf).any(-2)[..., None]
    if seen.shape[1] > x.shape[1]:
        seen = seen.unflatten(1, (x.shape[1], -1)).any(2)
    return x.masked_fill(~seen, 0.0)


def pairs(call: Call, x: Tensor) -> Tensor:
    """A mask or bias as (B|1, H|1, queries, keys)."""
    if x.ndim <= 4:
        return x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))
    return x.expand(*call.leading, *x.shape[-3:]).reshape(call.sequences, *x.shape[-3:])
