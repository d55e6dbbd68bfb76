"""Copies of attention calls: a recorded call must not change when the model overwrites its tensors."""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.bias import Bias
from regard.attention.call import Call
from regard.attention.energy import Energy
from regard.attention.mask import Mask
from regard.attention.normalize import Normalizer

# Copies made so far, by id of the original: (the original, its version when copied, the copy).
Copies = dict[int, tuple["weakref.ref[Tensor]", int, Tensor]]


def detach_call(call: Call) -> Call:
    """The call without copies, detached from the autograd graph.

    Values are dropped: weights do not need them.
    """
    query, key = (x.detach() if x.requires_grad else x for x in (call.query, call.key))
    edited = call.edited if call.edited is None else call.edited.detach()
    # Not by `replace`, which takes three times as long.
    return Call(
        query, key, key, call.energy, call.mask, call.bias, call.normalize, call.gate, call.softcap, 0.0,
        call.leading, call.heads, call.groups, call.squeeze_heads, call.autocast, edited,
    )  # fmt: skip


def snapshot_call(call: Call, copies: Copies) -> Call:
    """The call with copies of all its tensors. Values are dropped: weights do not need them."""
    with torch.no_grad():
        key = _copy(call.key)
        options = {
            name: _snapshot(getattr(call, name), copies)
            for name in ("energy", "mask", "bias", "normalize", "gate")
        }
        options["edited"] = None if call.edited is None else _copy(call.edited)
        return replace(call, query=_copy(call.query), key=key, value=key, dropout=0.0, **options)


def _copy(x: Tensor) -> Tensor:
    """A contiguous copy. Expanded axes (stride 0) are copied once and expanded again."""
    x = compact = x.detach()
    if 0 in x.stride():
        for axis, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
            if size > 1 and stride == 0:
                compact = compact.narrow(axis, 0, 1)
    copied = compact.clone(memory_format=torch.contiguous_format)
    return copied if compact is x else copied.expand(x.shape)


def _snapshot(x: Any, copies: Copies) -> Any:
    """x with copies of all tensors in it. Functions are kept as they are: their closures are not copied."""
    if isinstance(x, Tensor):
        return _copy_once(x, copies)
    if isinstance(x, nn.Module):
        return copy.deepcopy(x)
    if isinstance(x, Energy | Mask | Bias | Normalizer):
        if x.tensors() == ():
            return x
        new = copy.copy(x)
        for name, attribute in vars(x).items():
            object.__setattr__(new, name, _snapshot(attribute, copies))  # masks are frozen dataclasses
        return new
    if isinstance(x, list | tuple) and any(isinstance(y, Tensor) for y in x):
        return type(x)(_snapshot(y, copies) for y in x)
    return x


def _copy_once(x: Tensor, copies: Copies) -> Tensor:
    """One copy for all layers that share a mask, unless it was modified in place in between."""
    if x.is_inference():  # inference tensors have no version counter
        return _copy(x)
    known = copies.get(id(x))
    if known is not None:
        original, version, copied = known
        if original() is x and version == x._version:
            return copied
    copied = _copy(x)
    copies[id(x)] = (weakref.ref(x), x._version, copied)
    return copied
