"""The kernel interface. A new kernel is a subclass in its own file and an entry in `KERNELS` of plan.py.

`add_kernel` of plan.py registers one from outside; CONTRIBUTING.md has an example.
"""

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

# (query, key, value, mask) → output, or None if the tensors of this call need the full path.
Shortcut = Callable[[Tensor, Tensor, Tensor, Any], Tensor | None]


class Kernel(ABC):
    """One implementation of attention.

    `refuses`, `not_worth`, `describe` and `memory` read shapes and types, never the values of tensors.
    """

    name: str
    reads_unseen = True  # reads keys that no query may see; these may hold NaN, so they are cleared before
    compiles = False  # uses torch.compile

    @abstractmethod
    def refuses(self, call: Call, machine: Machine) -> str | None:
        """Why this kernel cannot run the call, or None."""

    def not_worth(self, call: Call, machine: Machine) -> str | None:
        """Why another kernel is expected to be faster, or None."""
        return None

    @abstractmethod
    def describe(self, call: Call, machine: Machine) -> str:
        """A few words for `explain`."""

    @abstractmethod
    def memory(self, call: Call, machine: Machine) -> int:
        """Bytes besides inputs and output, in the forward pass and saved for the backward pass."""

    @abstractmethod
    def run(self, call: Call, machine: Machine) -> Tensor:
        """Compute (*leading, heads, Tq, Dv), as the reference defines it."""

    def shortcut(self, call: Call, machine: Machine) -> Shortcut | None:
        """A function with less Python overhead for calls of this signature; None if there is none."""
        return None


def grad_of_plain(
    plain: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    grad: Tensor,
    wanted: Sequence[bool] | None = None,
) -> list[Tensor | None]:
    """Gradients of plain(*inputs) that can be differentiated again.

    A kernel's backward pass calls it under create_graph=True (a gradient penalty, a Hessian).
    """
    # Views: one input may be a function of another, and the gradient of q must not include paths through k.
    views = [None if x is None else x.view_as(x) for x in inputs]
    wanted = [
        x is not None and x.requires_grad and (wanted is None or wanted[i]) for i, x in enumerate(views)
    ]
    leaves = [x for x, w in zip(views, wanted, strict=True) if w and x is not None]
    grads = iter(torch.autograd.grad(plain(*views), leaves, grad, create_graph=True, allow_unused=True))
    return [next(grads) if w else None for w in wanted]


def plain_attention(
    form: DotForm | DistanceForm | AdditiveForm,
    v: Tensor,
    added: Tensor | None,
    *,
    causal: bool = False,
    softcap: float = 0.0,
    sigmoid: bool = False,
) -> Tensor:
    """softmax(cap(energies + added)) v in plain torch, (batch, heads, T, ·).

    A boolean `added` masks, and so does −∞. With `sigmoid`, weights are the sigmoid of the scores. Queries
    and keys that take no part may be NaN.
    """
    q, k, parameter = form  # the parameter is a scale, or v of the additive energy
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    hidden = _hidden(added, (q.shape[-2], k.shape[-2]) if causal else None, q.device)
    if hidden is not None:  # a product with a weight of 0 would spread NaN
        q = q.masked_fill(hidden.all(-1, keepdim=True), 0.0)
        unseen = hidden.all(-2)[..., None]
        k, v = k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0)
    scores = type(form)(q, k, parameter).energies()  # type: ignore[arg-type]
    if added is not None and added.dtype != torch.bool:
        scores = scores + added
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    if softcap:
        hidden = scores == -math.inf
        scores = (softcap * (scores / softcap).tanh()).masked_fill(hidden, -math.inf)
    if sigmoid:
        weights = torch.sigmoid(scores)
    else:
        weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    with no_autocast(v):
        out = (weights @ upcast(v)).to(v.dtype)
    # The gradient of an empty row may be NaN; 0 · NaN would reach all values.
    return out if hidden is None else out.masked_fill(empty, 0.0)


def _hidden(added: Tensor | None, causal: tuple[int, int] | None, device: torch.device) -> Tensor | None:
    """The pairs (query, key) that a mask or −∞ excludes, or a causal mask of this size; None: no pair."""
    hidden = None
    if added is not None:
        hidden = ~added if added.dtype == torch.bool else added == -math.inf
    if causal is not None:
        later = torch.ones(causal, dtype=torch.bool, device=device).triu(1)
        hidden = later if hidden is None else hidden | later
    return hidden
