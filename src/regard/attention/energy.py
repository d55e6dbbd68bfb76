"""Energies: the score of a query and a key, before bias, mask and normaliser.

query (..., heads, Tq, Dq), key (..., heads, Tk, Dk) → (..., heads, Tq, Tk). The scale belongs to the energy,
the temperature to the normaliser. Half-precision inputs give float32 energies: rounding an energy of 20 to
bfloat16 changes its weight by up to 6 %. Any function of (query, key) with these shapes can be an energy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.arguments import integer, number
from regard.attention.devices import Movable
from regard.attention.kernel_hints import reset_inherited_hints
from regard.attention.mask import tensor_signature
from regard.attention.precision import no_autocast, upcast
from regard.attention.tracing import broadcasts
from regard.errors import ShapeError


class DotForm(NamedTuple):
    """An energy as scale · query·key, the form that dot-product kernels run."""

    query: Tensor
    key: Tensor
    scale: float

    def energies(self) -> Tensor:
        with no_autocast(self.query):
            return (upcast(self.query) * self.scale) @ upcast(self.key).mT


class DistanceForm(NamedTuple):
    """An energy as −scale · ‖query − key‖²."""

    query: Tensor
    key: Tensor
    scale: float

    def energies(self) -> Tensor:
        return (
            -(upcast(self.query)[..., :, None, :] - upcast(self.key)[..., None, :, :]).square().sum(-1)
            * self.scale
        )


class AdditiveForm(NamedTuple):
    """An energy as vᵀ tanh(query + key), v (hidden,) or (heads, hidden), for additive kernels."""

    query: Tensor
    key: Tensor
    v: Tensor

    def energies(self) -> Tensor:
        a, b, v = (upcast(x) for x in self)
        v = v if v.ndim == 1 else v[:, None, None, :]
        return (torch.tanh(a[..., :, None, :] + b[..., None, :, :]) * v).sum(-1)


class Energy(Movable):
    """Base class of energies. The energy of a pair depends only on its two vectors.

    Kernels may therefore compute parts of the matrix. A subclass defines `__call__`, or `as_dot` or
    `as_additive`, which fused kernels can run.
    """

    form: str | None = None  # "dot" (kernels call `as_dot`), "additive" (`as_additive`), "distance" or None
    heads: int | None = None  # number of heads, if the energy has parameters per head

    def __init_subclass__(cls, **more: object) -> None:
        super().__init_subclass__(**more)
        hints = {"form": None, "heads": None, "pair_features": Energy.pair_features}
        reset_inherited_hints(
            cls, ("__call__", "forward"), hints, {"signature": Energy.signature, "tensors": Energy.tensors}
        )

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        has_dot = type(self).as_dot is not Energy.as_dot
        return (self.as_dot(query, key) if has_dot else self.as_additive(query, key)).energies()

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        """This energy as a dot product of transformed queries and keys."""
        raise NotImplementedError

    def as_additive(self, query: Tensor, key: Tensor) -> AdditiveForm:
        """This energy as vᵀ tanh(a + b) of transformed queries and keys."""
        raise NotImplementedError

    def pair_features(self, dim: int) -> int:
        """Intermediate values per pair for queries of width `dim`, to estimate memory and cost."""
        return 1

    def signature(self) -> Hashable | None:
        """A key for cached plans: everything that checks and planning read. None: plan every call."""
        return None

    def tensors(self) -> tuple[Tensor, ...] | None:
        """All tensors this energy reads beside its arguments; None: unknown."""
        return None

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        """Raise if the sizes do not match."""
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(
                f"{type(self).__name__} needs queries and keys of the same width, got query "
                f"{tuple(query.shape)} and key {tuple(key.shape)}; project one of them, or use Bilinear or "
                "Additive, which take two widths"
            )


class Dot(Energy):
    """e = scale · q·k; the default scale is 1."""

    form = "dot"

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = float(number("Dot's scale", scale))

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        return DotForm(query, key, self.scale)

    def signature(self) -> Hashable | None:
        return Dot, self.scale  # shortcuts of kernels depend on the scale

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return f"Dot(scale={self.scale:g})" if self.scale != 1.0 else "Dot()"


class ScaledDot(Energy):
    """e = q·k / √d (Vaswani et al. 2017, eq. 1): variance 1 for independent components of mean 0, variance 1.

    >>> q = k = torch.ones(1, 1, 1, 16)
    >>> regard.weights(q, k, energy=regard.ScaledDot(), stage="energy").item()
    4.0
    """

    form = "dot"

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        return DotForm(query, key, 1.0 / math.sqrt(max(1, query.shape[-1])))

    def signature(self) -> Hashable | None:
        return ScaledDot

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return "ScaledDot()"


PLAIN_DOTS = (Dot, ScaledDot)  # dot products of queries and keys as they are, times a scale


class Cosine(Energy):
    """e = scale · q·k / (‖q‖‖k‖). A zero vector has energy 0 with every key, and gradient 0."""

    form = "dot"

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = float(number("Cosine's scale", scale))

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        return DotForm(_unit(query), _unit(key), self.scale)

    def signature(self) -> Hashable | None:
        return Cosine

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return f"Cosine(scale={self.scale:g})"


def _unit(x: Tensor) -> Tensor:
    """x / ‖x‖, and 0 for 0. Scaled by the largest component first, so that squares cannot overflow."""
    if x.shape[-1] == 0:
        return x
    y = upcast(x)
    largest = y.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    y = y / largest.masked_fill(zero, 1.0)
    squares = y.square().sum(-1, keepdim=True).masked_fill(zero, 1.0)
    return (y / squares.sqrt()).masked_fill(zero, 0.0).to(x.dtype)


class Distance(Energy):
    """e = −‖q − k‖², largest (0) where the key equals the query.

    Computed from the differences: 2 q·k − ‖q‖² − ‖k‖² would cancel for close vectors far from the origin.
    """

    form = "distance"

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return DistanceForm(query, key, 1.0).energies()

    def pair_features(self, dim: int) -> int:
        return dim

    def signature(self) -> Hashable | None:
        return Distance

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return "Distance()"


class Match(Energy):
    """e = 1[q = k]: 1 if all components are equal, else 0. With `Raw()`, attention is a dictionary lookup."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        equal = torch.ones(1, dtype=torch.bool, device=query.device)
        for d in range(query.shape[-1]):  # one component at a time: no Tq×Tk×D tensor
            equal = equal & (query[..., :, None, d] == key[..., None, :, d])
        shape = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        return upcast(equal.to(query.dtype)).expand(*shape, query.shape[-2], key.shape[-2])

    def signature(self) -> Hashable | None:
        return Match

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return "Match()"


class Bilinear(nn.Module, Energy):
    """e = qᵀ Wᵀ V k · scale with W, V ∈ R^(rank×D) (Schmidt-Thieme's X Wᵀ V Xᵀ), or qᵀ W k · scale.

    >>> q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 6)  # widths may differ
    >>> regard.attend(q, k, k, energy=regard.Bilinear(4, 6)).shape
    torch.Size([1, 1, 3, 6])

    `rank=None` is the second form, with a full W. With `heads`, each head has its own matrices.
    """

    form = "dot"

    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        *,
        rank: int | None = None,
        heads: int | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        key_dim = query_dim if key_dim is None else key_dim
        _check_sizes(query_dim=query_dim, key_dim=key_dim, rank=rank, heads=heads)
        self.query_dim, self.key_dim, self.rank, self.heads = query_dim, key_dim, rank, heads
        self.scale = float(number("Bilinear's scale", scale))
        head = () if heads is None else (heads,)
        rows, columns = (query_dim, key_dim) if rank is None else (rank, query_dim)
        self.W = nn.Parameter(torch.empty(*head, rows, columns))
        self.V = None if rank is None else nn.Parameter(torch.empty(*head, rank, key_dim))
        for weight in self.parameters():
            nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))

    def matrix(self) -> Tensor:
        """The interaction matrix Wᵀ V itself, (…, query_dim, key_dim)."""
        return self.W if self.V is None else self.W.transpose(-1, -2) @ self.V

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        W, V = self.W.to(query.dtype), None if self.V is None else self.V.to(key.dtype)
        if V is None:
            return DotForm(query @ W, key, self.scale)
        return DotForm(query @ W.mT, key @ V.mT, self.scale)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.as_dot(query, key).energies()

    def signature(self) -> Hashable | None:
        V = tensor_signature(self.V)
        return Bilinear, self.query_dim, self.key_dim, self.heads, tensor_signature(self.W), V

    def tensors(self) -> tuple[Tensor, ...] | None:
        return tuple(self.parameters())

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        _check_widths(self, query, key, heads)

    def extra_repr(self) -> str:
        return f"{self.query_dim}, {self.key_dim}, rank={self.rank}, heads={self.heads}"


class Additive(nn.Module, Energy):
    """e = vᵀ tanh(Wq q + Wk k) (Bahdanau et al. 2015, appendix A.1.2). With `heads`, each head has its own v.

    >>> q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)  # (batch, heads, time, dim)
    >>> regard.attend(q, k, k, energy=regard.Additive(8, heads=2)).shape
    torch.Size([1, 2, 3, 8])
    """

    form = "additive"

    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        hidden: int | None = None,
        *,
        heads: int | None = None,
    ) -> None:
        super().__init__()
        key_dim = query_dim if key_dim is None else key_dim
        hidden = query_dim if hidden is None else hidden
        _check_sizes(query_dim=query_dim, key_dim=key_dim, hidden=hidden, heads=heads)
        self.query_dim, self.key_dim, self.hidden, self.heads = query_dim, key_dim, hidden, heads
        self.Wq = nn.Linear(query_dim, hidden, bias=False)
        self.Wk = nn.Linear(key_dim, hidden, bias=False)
        self.v = nn.Parameter(torch.empty(hidden) if heads is None else torch.empty(heads, hidden))
        nn.init.normal_(self.v, std=1 / math.sqrt(hidden))

    def as_additive(self, query: Tensor, key: Tensor) -> AdditiveForm:
        return AdditiveForm(self.Wq(query), self.Wk(key), self.v)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.as_additive(query, key).energies()

    def pair_features(self, dim: int) -> int:
        return self.hidden

    def signature(self) -> Hashable | None:
        return (
            Additive,
            self.query_dim,
            self.key_dim,
            self.hidden,
            self.heads,
            tensor_signature(self.v),
            _has_trainable(self),
        )

    def tensors(self) -> tuple[Tensor, ...] | None:
        return tuple(self.parameters())

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        _check_widths(self, query, key, heads)

    def extra_repr(self) -> str:
        return f"{self.query_dim}, {self.key_dim}, hidden={self.hidden}, heads={self.heads}"


class ProjectedAdditive(Energy):
    """`Additive` for keys that are projected already: a recurrent decoder does this once for all steps."""

    form = "additive"

    def __init__(self, additive: Additive) -> None:
        self.additive, self.heads = additive, additive.heads

    def as_additive(self, query: Tensor, key: Tensor) -> AdditiveForm:
        return AdditiveForm(self.additive.Wq(query), key, self.additive.v)

    def pair_features(self, dim: int) -> int:
        return self.additive.hidden

    def signature(self) -> Hashable | None:
        inner = self.additive.signature()
        return None if inner is None else (ProjectedAdditive, inner)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return tuple(self.additive.parameters())

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        _check_widths(self.additive, query, key.new_empty(0, self.additive.key_dim), heads)
        if key.shape[-1] != self.additive.hidden:
            raise ShapeError(
                f"projected keys have width {self.additive.hidden}, got {tuple(key.shape)}; apply Wk first"
            )

    def __repr__(self) -> str:
        return f"ProjectedAdditive({self.additive.extra_repr()})"


class Custom(Energy):
    """A function of (query, key) that returns (..., heads, Tq, Tk). It always gets all queries and keys."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        scores = self.function(query, key)
        leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        expected = (*leading, query.shape[-2], key.shape[-2])
        if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ShapeError(
                f"the energy function returned {got} and must return (…, heads, Tq, Tk) = {expected}"
            )
        return upcast(scores)

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        return None

    def __repr__(self) -> str:
        return f"Custom({getattr(self.function, '__name__', type(self.function).__name__)})"


def _has_trainable(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _check_widths(energy: Bilinear | Additive, query: Tensor, key: Tensor, heads: int) -> None:
    name = type(energy).__name__
    sides = (("queries", "query_dim", query), ("keys", "key_dim", key))
    for side, argument, x in sides:
        width = getattr(energy, argument)
        if x.shape[-1] != width:
            raise ShapeError(
                f"this {name} takes {side} of width {width}, got {tuple(x.shape)}; "
                f"create it with {argument}={x.shape[-1]}"
            )
    if energy.heads is not None and not broadcasts(energy.heads, heads):
        raise ShapeError(
            f"this {name} has {energy.heads} heads and the call has {heads}; create it with heads={heads}"
        )


def _check_sizes(**sizes: int | None) -> None:
    """Raise unless the sizes are positive integers; all but query_dim may be None."""
    for name, value in sizes.items():
        if value is not None or name == "query_dim":
            integer(name, value)
