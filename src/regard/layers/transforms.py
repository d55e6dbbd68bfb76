"""When a gradient written by hand may replace torch's own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad


def transformed() -> bool:
    """True inside torch.func (grad, vmap, jvp, …) and forward-mode differentiation.

    These need torch operations throughout: an autograd.Function without rules for them is an error there.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0  # type: ignore[attr-defined]


def dispatch_mode() -> bool:
    """True inside a TorchDispatchMode such as FakeTensorMode or FlopCounterMode."""
    return torch._C._len_torch_dispatch_stack() > 0


def fake(x: Tensor) -> bool:
    """True if x has a shape and no values, or will have once it is computed with."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(x, FakeTensor) or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
