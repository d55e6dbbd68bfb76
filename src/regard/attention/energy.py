"""Energies: how well a query and a key fit, before anything is normalised.

Shapes: query (..., heads, Tq, Dq), key (..., heads, Tk, Dk) → (..., heads, Tq, Tk). Scale belongs here; temperature to the
normaliser. Any function of (query, key) with these shapes is an energy too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import OptionError, ShapeError


class DotForm(NamedTuple):
    """An energy written as scale · query·key, so that every dot-product kernel can run it."""

    query: Tensor
    key: Tensor
    scale: float


class Energy:
    """The parent of all energies. The energy of a pair depends on its two vectors alone: kernels ask for parts of the matrix."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        raise NotImplementedError

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | None:
        """This energy as a plain dot product of other vectors, or None."""
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

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = _finite("Dot's scale", scale)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query * self.scale if self.scale != 1.0 else query) @ key.transpose(-1, -2)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | None:
        return DotForm(query, key, self.scale)

    def __repr__(self) -> str:
        return f"Dot(scale={self.scale:g})" if self.scale != 1.0 else "Dot()"


class ScaledDot(Energy):
    """e = q·k / √d (Vaswani et al. 2017, eq. 1): of unit variance when the components are."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (query * _scale(query)) @ key.transpose(-1, -2)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | None:
        return DotForm(query, key, _scale(query))

    def __repr__(self) -> str:
        return "ScaledDot()"


def _scale(query: Tensor) -> float:
    return 1.0 / math.sqrt(max(1, query.shape[-1]))


class Cosine(Energy):
    """e = scale · q·k / (‖q‖‖k‖). A zero vector fits nothing: its energies are 0."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = _finite("Cosine's scale", scale)

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (_unit(query) * self.scale) @ _unit(key).transpose(-1, -2)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | None:
        return DotForm(_unit(query), _unit(key), self.scale)

    def __repr__(self) -> str:
        return f"Cosine(scale={self.scale:g})"


def _unit(x: Tensor) -> Tensor:
    return nn.functional.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)


class Distance(Energy):
    """e = −‖q − k‖², largest (0) exactly where the key equals the query."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return -(query[..., :, None, :] - key[..., None, :, :]).square().sum(-1)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | None:
        """−‖q−k‖² = 2 q·k − ‖k‖² − ‖q‖²: one dot product over two more components.

        Moving all vectors by the same amount changes no distance, so they are centred first; when they still spread so
        far that the differences of large squares would lose digits, there is no dot form.
        """
        if torch.compiler.is_compiling() or query.device.type != "cpu" or min(query.numel(), key.numel()) == 0:
            return None
        centre = key.detach().reshape(-1, key.shape[-1]).mean(0)
        query, key = query - centre, key - centre
        q2, k2 = (torch.linalg.vecdot(x, x)[..., None] for x in (query, key))
        if not max(float(q2.detach().max()), float(k2.detach().max())) < 2.0 * query.shape[-1] + 8.0:
            return None  # wider than vectors of unit variance
        q = torch.cat([query * 2, torch.ones_like(q2), q2], -1)
        k = torch.cat([key, -k2, -torch.ones_like(k2)], -1)
        return DotForm(q, k, 1.0)

    def __repr__(self) -> str:
        return "Distance()"


class Match(Energy):
    """e = 1[q = k]: 1 where every component is equal, else 0. With `Raw()` weights attention is a dictionary."""

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        equal = torch.ones(1, dtype=torch.bool, device=query.device)
        for d in range(query.shape[-1]):  # one component at a time: no Tq×Tk×D tensor
            equal = equal & (query[..., :, None, d] == key[..., None, :, d])
        shape = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        return equal.to(query.dtype).expand(*shape, query.shape[-2], key.shape[-2])

    def __repr__(self) -> str:
        return "Match()"


class Bilinear(nn.Module, Energy):
    """e = qᵀ Wᵀ V k · scale with W, V ∈ R^(rank×D) (the lecture's X Wᵀ V Xᵀ), or qᵀ W k with a full W when rank is None.

    `heads` gives each head its own matrices.
    """

    def __init__(
        self, query_dim: int, key_dim: int | None = None, *, rank: int | None = None, heads: int | None = None, scale: float = 1.0
    ) -> None:
        super().__init__()
        key_dim = query_dim if key_dim is None else key_dim
        _positive(query_dim=query_dim, key_dim=key_dim, rank=rank, heads=heads)
        self.query_dim, self.key_dim, self.rank, self.heads = query_dim, key_dim, rank, heads
        self.scale = _finite("Bilinear's scale", scale)
        head = () if heads is None else (heads,)
        self.W = nn.Parameter(torch.empty(*head, query_dim if rank is None else rank, key_dim if rank is None else query_dim))
        self.V = None if rank is None else nn.Parameter(torch.empty(*head, rank, key_dim))
        for weight in self.parameters():
            nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))

    def matrix(self) -> Tensor:
        """The interaction matrix Wᵀ V itself, (…, query_dim, key_dim)."""
        return self.W if self.V is None else self.W.transpose(-1, -2) @ self.V

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | None:
        if self.V is None:
            return DotForm(query @ self.W, key, self.scale)
        return DotForm(query @ self.W.transpose(-1, -2), key @ self.V.transpose(-1, -2), self.scale)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        q, k, scale = self.as_dot(query, key)  # type: ignore[misc]
        return (q * scale) @ k.transpose(-1, -2)

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        _check_widths(self, query, key, heads)

    def extra_repr(self) -> str:
        return f"{self.query_dim}, {self.key_dim}, rank={self.rank}, heads={self.heads}"


class Additive(nn.Module, Energy):
    """e = vᵀ tanh(Wq q + Wk k) (Bahdanau et al. 2015, appendix A.1.2). `heads` gives each head its own v."""

    def __init__(self, query_dim: int, key_dim: int | None = None, hidden: int | None = None, *, heads: int | None = None) -> None:
        super().__init__()
        key_dim = query_dim if key_dim is None else key_dim
        hidden = query_dim if hidden is None else hidden
        _positive(query_dim=query_dim, key_dim=key_dim, hidden=hidden, heads=heads)
        self.query_dim, self.key_dim, self.hidden, self.heads = query_dim, key_dim, hidden, heads
        self.Wq = nn.Linear(query_dim, hidden, bias=False)
        self.Wk = nn.Linear(key_dim, hidden, bias=False)
        self.v = nn.Parameter(torch.empty(hidden) if heads is None else torch.empty(heads, hidden))
        nn.init.normal_(self.v, std=1 / math.sqrt(hidden))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.score(self.Wq(query), self.Wk(key))

    def score(self, a: Tensor, b: Tensor) -> Tensor:
        """vᵀ tanh(a + b) for projected queries a and keys b."""
        v = self.v.to(a.dtype)
        v = v if self.heads is None else v[:, None, None, :]
        return (torch.tanh(a[..., :, None, :] + b[..., None, :, :]) * v).sum(-1)

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        _check_widths(self, query, key, heads)

    def extra_repr(self) -> str:
        return f"{self.query_dim}, {self.key_dim}, hidden={self.hidden}, heads={self.heads}"


class ProjectedAdditive(Energy):
    """Additive's energy for keys that were projected before: a recurrence that asks the same keys at every step does it once."""

    def __init__(self, additive: Additive) -> None:
        self.function, self.hidden, self.heads = additive, additive.hidden, additive.heads

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return self.function.score(self.function.Wq(query), key)

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        _check_widths(self.function, query, key.new_empty(0, self.function.key_dim), heads)
        if key.shape[-1] != self.hidden:
            raise ShapeError(f"projected keys have width {self.hidden}, got {tuple(key.shape)}; apply Wk first")

    def __repr__(self) -> str:
        return f"ProjectedAdditive({self.function.extra_repr()})"


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
        return scores

    def check(self, query: Tensor, key: Tensor, heads: int) -> None:
        return None

    def __repr__(self) -> str:
        return f"Custom({getattr(self.function, '__name__', type(self.function).__name__)})"


def _check_widths(energy: Bilinear | Additive, query: Tensor, key: Tensor, heads: int) -> None:
    name = type(energy).__name__
    for side, x, want in (("queries", query, energy.query_dim), ("keys", key, energy.key_dim)):
        if x.shape[-1] != want:
            raise ShapeError(f"this {name} takes {side} of width {want}, got {tuple(x.shape)}; make it for {x.shape[-1]}")
    if energy.heads not in (None, 1, heads):
        raise ShapeError(f"this {name} has {energy.heads} heads and the call has {heads}; make it for {heads}")


def _positive(**sizes: int | None) -> None:
    for name, value in sizes.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise OptionError(f"{name} must be a whole number of at least 1, got {value!r}")


def _finite(name: str, value: float) -> float:
    if isinstance(value, Tensor) or not isinstance(value, int | float) or not math.isfinite(value):
        raise OptionError(f"{name} must be a finite number, got {value!r}")
    return float(value)
