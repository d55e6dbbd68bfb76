"""Detect tracing and transforms: torch.compile, torch.func, fake tensors, torch.jit, forward-mode AD.

A traced call must consist of torch operations alone: it may not read values, access memory or branch on
sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Buffer, Parameter

PLAIN = (Tensor, Parameter, Buffer)


def transform() -> str | None:
    """A description of the transform (torch.func, forward-mode AD) of this call, or None."""
    if is_compiling():
        return None
    if peek_interpreter_stack() is not None:
        return "torch.func transforms this call"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is on"
    return None


def tracer(*tensors: Tensor) -> str | None:
    """A description of what traces or transforms this call, or None."""
    if is_compiling():
        return "torch.compile traces this call"
    if _len_torch_dispatch_stack():
        return "a dispatch mode (fake tensors, make_fx, a FLOP counter) watches this call"
    if _get_tracing_state() is not None:
        return "torch.jit traces this call"
    for x in tensors:
        if type(x) not in PLAIN:
            return f"a {type(x).__name__} is not a plain tensor"
        if x.device.type == "meta":
            return "meta tensors hold no values"
    return transform()


def is_eager(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether nothing traces or transforms this call; faster than `tracer`."""
    return (
        type(query) in PLAIN
        and type(key) in PLAIN
        and type(value) in PLAIN
        and not is_dynamo_compiling()  # torch.export's other tracers are dispatch modes
        and not _len_torch_dispatch_stack()
        and peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and _get_tracing_state() is None
    )


def is_fake(x: Tensor) -> bool:
    """Whether x is a fake tensor, or a fake tensor mode is active."""
    from torch._subclasses.fake_tensor import FakeTensor

    return (
        isinstance(x, FakeTensor)
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def statically_true(condition: object) -> bool:
    """Whether a condition on sizes is true; False if it depends on symbolic sizes."""
    if condition is True or condition is False:
        return condition
    if isinstance(condition, Tensor):  # sizes are tensors under torch.jit.trace
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)  # type: ignore[arg-type]


def broadcasts(size: int, to: int) -> bool:
    """Whether an axis broadcasts to another one. torch.compile does not find symbolic sizes with `in`."""
    return size == 1 or size == to


def can_read_values(x: Tensor) -> bool:
    """Whether values of x can be read cheaply: not while tracing, nor on a GPU, which would synchronize."""
    return x.device.type == "cpu" and tracer(x) is None
