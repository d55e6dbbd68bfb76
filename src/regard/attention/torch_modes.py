"""Who else runs this call: torch.compile, torch.func, fake tensors, forward-mode AD, or nobody.

A traced call is computed on stand-ins for tensors. Then no value may be read, no memory may be touched and no size may be
compared, and the call must consist of torch operations alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import (
    _functorch,  # type: ignore[attr-defined]
    _get_tracing_state,
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad
from torch.nn import Buffer, Parameter

PLAIN = (Tensor, Parameter, Buffer)


def transform() -> str | None:
    """What transforms the derivative or the batch of this call, or None; only plain operations follow such rules."""
    if torch.compiler.is_compiling():
        return None
    if _functorch.peek_interpreter_stack() is not None:
        return "torch.func transforms this call"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is on"
    return None


def tracer(*tensors: Tensor) -> str | None:
    """What traces this call, or None."""
    if torch.compiler.is_compiling():
        return "torch.compile traces this call"
    if _len_torch_dispatch_stack():
        return "a dispatch mode (fake tensors, make_fx, a counter) watches this call"
    if _get_tracing_state() is not None:
        return "torch.jit traces this call"
    for x in tensors:
        if type(x) not in PLAIN:
            return f"a {type(x).__name__} is not a plain tensor"
        if x.device.type == "meta":
            return "meta tensors hold no values"
    return transform()


def is_plain(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether nothing traces this call; `tracer` says what, this is quicker."""
    if torch.compiler.is_compiling() or not (
        type(query) in PLAIN and type(key) in PLAIN and type(value) in PLAIN
    ):
        return False
    return not (
        _len_torch_dispatch_stack()
        or _functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or _get_tracing_state() is not None
    )


def is_fake(x: Tensor) -> bool:
    """Whether x has a shape and no values, or will have once it is computed with."""
    from torch._subclasses.fake_tensor import FakeTensor

    return (
        isinstance(x, FakeTensor)
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def surely(condition: object) -> bool:
    """Whether a condition on sizes holds; False when they are symbols that may have either answer."""
    if condition is True or condition is False:
        return condition
    if isinstance(condition, Tensor):  # torch.jit.trace counts in tensors
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)  # type: ignore[arg-type]


def may_read(x: Tensor) -> bool:
    """Whether the values of x can be read, and reading costs little: not while traced, and not on a GPU, which would wait."""
    return x.device.type == "cpu" and tracer(x) is None
