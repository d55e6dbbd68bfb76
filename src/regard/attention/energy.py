"""Energies: how well a query and a key fit, before anything is normalised.

Shapes: query (..., heads, Tq, Dq), key (..., heads, Tk, Dk) → (..., heads, Tq, Tk). Scale belongs here; temperature to the
normaliser. Half-precision inputs give float32 energies: rounding an energy of size 20 to bfloat16 changes its weight by 6 %.
Any function of (query, key) with these shapes is an energy too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.arguments import integer
from regard.attention.devices import Movable
from regard.attention.kernel_hints import reset_inherited_hints
from regard.attention.mask import tensor_signature
from regard.attention.precision import no_autocast, upcast
from regard.errors import OptionError, ShapeError


class DotForm(NamedTuple):
    """An energy written as scale · query·key, so that every dot-product kernel can run it."""

    query: Tensor
    key: Tensor
    scale: float

    def energies(self) -> Tensor:
        with no_autocast(self.query):
            return (upcast(self.query) * self.scale) @ upcast(self.key).mT


class DistanceForm(NamedTuple):
    """An energy written as −scale · ‖query − key‖²."""

    query: Tensor
    key: Tensor
    scale: float

    def energies(self) -> Tensor:
        return (
            -(upcast(self.query)[..., :, None, :] - upcast(self.key)[..., None, :, :]).square().sum(-1)
            * self.scale
        )


class AdditiveForm(NamedTuple):
    """An energy written as vᵀ tanh(query + key), v (hidden,) or (heads, hidden), so that the additive kernels can run it."""

    query: Tensor
    key: Tensor
    v: Tensor

    def energies(self) -> Tensor:
        a, b, v = (upcast(x) for x in self)
        v = v if v.ndim == 1 else v[:, None, None, :]
        return (torch.tanh(a[..., :, None, :] + b[..., None, :, :]) * v).sum(-1)


class Energy(Movable):
    """The parent of all energies. The energy of a pair depends on its two vectors alone: kernels ask for parts of the matrix.

    A subclass defines `__call__`, or `as_dot` or `as_additive`, which fused kernels can run.
    """

    form: str | None = (
        None  # "dot" or "additive", where `as_dot` or `as_additive` is this energy, or "distance"
    )
    heads: int | None = None  # of an energy with parameters per head

    def __init_subclass__(cls, **more: object) -> None:
        super().__init_subclass__(**more)
        facts = {"form": None, "heads": None, "pair_features": Energy.pair_features}
        reset_inherited_hints(
            cls, ("__call__", "forward"), facts, {"signature": Energy.signature, "tensors": Energy.tensors}
        )

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        has_dot = type(self).as_dot is not Energy.as_dot
        return (self.as_dot(query, key) if has_dot else self.as_additive(query, key)).energies()

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        """This energy as a plain dot product of other vectors."""
        raise NotImplementedError

    def as_additive(self, query: Tensor, key: Tensor) -> AdditiveForm:
        """This energy as vᵀ tanh(a + b) of other vectors."""
        raise NotImplementedError

    def pair_features(self, dim: int) -> int:
        """How many numbers are computed per pair for queries of width `dim`: for memory and speed."""
        return 1

    def signature(self) -> Hashable | None:
        """Everything that checks and planning read of this energy; None: unknown, plan at every call."""
        return None

    def tensors(self) -> tuple[Tensor, ...] | None:
        """All tensors this energy reads beside its arguments; None: unknown."""
        return None

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        """Raise when the sizes do not fit."""
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(
                f"{type(self).__name__} needs queries and keys of one width, got query {tuple(query.shape)} and "
                f"key {tuple(key.shape)}; project one of them, or use Bilinear or Additive, which take two widths"
            )


class Dot(Energy):
    """e = scale · q·k, with scale 1 unless said otherwise."""

    form = "dot"

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = _finite("Dot's scale", scale)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        return DotForm(query, key, self.scale)

    def signature(self) -> Hashable | None:
        return Dot

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return f"Dot(scale={self.scale:g})" if self.scale != 1.0 else "Dot()"


class ScaledDot(Energy):
    """e = q·k / √d (Vaswani et al. 2017, eq. 1): of unit variance when the components are."""

    form = "dot"

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        return DotForm(query, key, 1.0 / math.sqrt(max(1, query.shape[-1])))

    def signature(self) -> Hashable | None:
        return ScaledDot

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return "ScaledDot()"


class Cosine(Energy):
    """e = scale · q·k / (‖q‖‖k‖). A zero vector fits nothing: its energies are 0, and so is its gradient."""

    form = "dot"

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = _finite("Cosine's scale", scale)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        return DotForm(_unit(query), _unit(key), self.scale)

    def signature(self) -> Hashable | None:
        return Cosine

    def tensors(self) -> tuple[Tensor, ...] | None:
        return ()

    def __repr__(self) -> str:
        return f"Cosine(scale={self.scale:g})"


def _unit(x: Tensor) -> Tensor:
    """x / ‖x‖, 0 for 0. The length does not matter, so the largest component becomes 1 first: squares cannot overflow."""
    if x.shape[-1] == 0:
        return x
    y = upcast(x)
    largest = y.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    y = y / largest.masked_fill(zero, 1.0)
    squares = y.square().sum(-1, keepdim=True).masked_fill(zero, 1.0)
    return (y / squares.sqrt()).masked_fill(zero, 0.0).to(x.dtype)


class Distance(Energy):
    """e = −‖q − k‖², largest (0) exactly where the key equals the query.

    Computed from the differences: 2 q·k − ‖q‖² − ‖k‖² would lose all digits of near vectors far from the origin.
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
    """e = 1[q = k]: 1 where every component is equal, else 0. With `Raw()` weights attention is a dictionary."""

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
    """e = qᵀ Wᵀ V k · scale with W, V ∈ R^(rank×D) (the lecture's X Wᵀ V Xᵀ), or qᵀ W k with a full W when rank is None.

    `heads` gives each head its own matrices.
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
        _positive(query_dim=query_dim, key_dim=key_dim, rank=rank, heads=heads)
        self.query_dim, self.key_dim, self.rank, self.heads = query_dim, key_dim, rank, heads
        self.scale = _finite("Bilinear's scale", scale)
        head = () if heads is None else (heads,)
        self.W = nn.Parameter(
            torch.empty(*head, query_dim if rank is None else rank, key_dim if rank is None else query_dim)
        )
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
    """e = vᵀ tanh(Wq q + Wk k) (Bahdanau et al. 2015, appendix A.1.2). `heads` gives each head its own v."""

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
        _positive(query_dim=query_dim, key_dim=key_dim, hidden=hidden, heads=heads)
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
            _learning(self),
        )

    def tensors(self) -> tuple[Tensor, ...] | None:
        return tuple(self.parameters())

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        _check_widths(self, query, key, heads)

    def extra_repr(self) -> str:
        return f"{self.query_dim}, {self.key_dim}, hidden={self.hidden}, heads={self.heads}"


class ProjectedAdditive(Energy):
    """Additive's energy for keys that were projected before: a recurrence that asks the same keys at every step does it once."""

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
    """Any function of (query, key) that gives (..., heads, Tq, Tk). It is always given all queries and keys."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        scores = self.function(query, key)
        want = (*torch.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2], key.shape[-2])
        if not isinstance(scores, Tensor) or tuple(scores.shape) != want:
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ShapeError(f"the energy function gave {got} and must give (…, heads, Tq, Tk) = {want}")
        return upcast(scores)

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        return None

    def __repr__(self) -> str:
        return f"Custom({getattr(self.function, '__name__', type(self.function).__name__)})"


def _learning(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _check_widths(energy: Bilinear | Additive, query: Tensor, key: Tensor, heads: int) -> None:
    name = type(energy).__name__
    for side, x, want in (("queries", query, energy.query_dim), ("keys", key, energy.key_dim)):
        if x.shape[-1] != want:
            raise ShapeError(
                f"this {name} takes {side} of width {want}, got {tuple(x.shape)}; make it for {x.shape[-1]}"
            )
    if energy.heads not in (None, 1, heads):
        raise ShapeError(
            f"this {name} has {energy.heads} heads and the call has {heads}; make it for {heads}"
        )


def _positive(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None or name == "query_dim":
            integer(name, value)


def _finite(name: str, value: float) -> float:
    if isinstance(value, Tensor) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OptionError(f"{name} must be a finite number, got {value!r}")
    return float(value)
