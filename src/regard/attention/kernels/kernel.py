"""What a kernel is. A new one is a subclass in a file of its own and an entry in `KERNELS` of plan.py."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.call import Call
from regard.attention.energy import AdditiveForm, DistanceForm, DotForm
from regard.attention.machine import Machine
from regard.attention.precision import no_autocast, upcast

# (query, key, value, mask) → output, or None when the values of this call need the long way.
Shortcut = Callable[[Tensor, Tensor, Tensor, Any], Tensor | None]


class Kernel(ABC):
    """One way to run a call. `refuses`, `not_worth`, `describe` and `memory` read shapes and types, never values."""

    name: str
    reads_unseen = (
        True  # keys and values that no query sees are read, so they are cleared before: they may hold NaN
    )
    compiles = False  # runs through torch.compile

    @abstractmethod
    def refuses(self, call: Call, machine: Machine) -> str | None:
        """Why this kernel cannot run the call, or None."""

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        """Why this kernel is not the fastest way to run a call that it can run, or None."""
        return None

    @abstractmethod
    def describe(self, call: Call, machine: Machine) -> str:
        """What runs, in a few words."""

    @abstractmethod
    def memory(self, call: Call, machine: Machine) -> int:
        """Bytes beside inputs and output, for the forward pass and what it keeps for the backward."""

    @abstractmethod
    def run(self, call: Call, machine: Machine) -> Tensor:
        """(*leading, heads, Tq, Dv), by rules of this kernel and with the meaning of the reference."""

    def shortcut(self, call: Call, machine: Machine) -> Shortcut | None:
        """A quicker way to run calls of this signature, for those so small that Python's time counts; None: there is none."""
        return None


def grad_of_plain(
    plain: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    grad: Tensor,
    wanted: Sequence[bool] | None = None,
) -> list[Tensor | None]:
    """Gradients of plain(*inputs) that can be differentiated again.

    A kernel's own backward pass calls it when autograd asks for a graph (create_graph=True, a gradient penalty, a Hessian).
    """
    # Views, since one input may be a function of another: the gradient by q must not include what reaches q by way of k.
    views = [None if x is None else x.view_as(x) for x in inputs]
    wanted = [
        x is not None and x.requires_grad and (wanted is None or wanted[i]) for i, x in enumerate(views)
    ]
    leaves = [x for x, w in zip(views, wanted, strict=True) if w and x is not None]
    found = iter(torch.autograd.grad(plain(*views), leaves, grad, create_graph=True, allow_unused=True))
    return [next(found) if w else None for w in wanted]


def plain_attention(
    form: DotForm | DistanceForm | AdditiveForm,
    v: Tensor,
    added: Tensor | None,
    *,
    causal: bool = False,
    softcap: float = 0.0,
) -> Tensor:
    """softmax(cap(energies + added)) v in plain torch, for (batch, heads, T, ·); a boolean `added` is a mask."""
    q, k, rest = form
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = type(form)(q, k, rest).energies()  # type: ignore[arg-type]
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    if added is not None and added.dtype == torch.bool:
        scores = scores.masked_fill(~added, -math.inf)
    elif added is not None:
        scores = scores + added
    dead = (scores == -math.inf).all(-1, keepdim=True)
    if softcap:
        hidden = scores == -math.inf
        scores = (softcap * (scores / softcap).tanh()).masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores.masked_fill(dead, 0.0), -1).masked_fill(dead, 0.0)
    with no_autocast(v):
        return (weights @ upcast(v)).to(v.dtype)
