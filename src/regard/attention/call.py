"""One attention call, checked: everything a kernel may read, and nothing it has to check again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from regard.attention.energy import Custom, DotForm, Energy, ScaledDot
from regard.attention.grid import Grid, Index
from regard.attention.mask import Dense, Mask
from regard.attention.normalize import CustomNormalizer, Normalizer, Softmax
from regard.attention.position import Bias, DenseBias, PositionBias
from regard.errors import DeviceError, DtypeError, OptionError, ShapeError

EnergyLike = Energy | Callable[[Tensor, Tensor], Tensor]
MaskLike = Mask | Tensor
BiasLike = Bias | Tensor | Callable[[Tensor, Tensor], Tensor]
NormalizerLike = Normalizer | Callable[[Tensor], Tensor]
GateLike = Mask | Bias | Tensor


class Options(TypedDict, total=False):
    """The options of `attend` that say what is computed."""

    energy: EnergyLike
    mask: MaskLike | None
    bias: BiasLike | None
    normalize: NormalizerLike
    gate: GateLike | None
    softcap: float | None
    dropout: float


SCALED_DOT, SOFTMAX = ScaledDot(), Softmax()


@dataclass
class Call:
    """Checked inputs. query (*leading, heads, Tq, Dq); key, value (*leading, heads/groups, Tk, ·), leading axes broadcast."""

    query: Tensor
    key: Tensor
    value: Tensor
    energy: Energy
    mask: Mask | None
    bias: Bias | None
    normalize: Normalizer
    gate: Mask | Bias | None
    softcap: float | None
    dropout: float
    leading: tuple[int, ...]
    heads: int
    groups: int
    flat: bool  # no heads axis was given: take it off the result again
    _dot: list[DotForm | None] = field(default_factory=list, init=False)

    @property
    def Tq(self) -> int:
        return self.query.shape[-2]

    @property
    def Tk(self) -> int:
        return self.key.shape[-2]

    @property
    def Dv(self) -> int:
        return self.value.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.query.dtype

    @property
    def sequences(self) -> int:
        return math.prod(self.leading)

    @property
    def dot(self) -> DotForm | None:
        """The energy as a dot product, or None. Keys keep their grouped heads when the energy has no heads of its own."""
        if not self._dot:  # computed once; functools.cached_property locks, which torch.compile cannot trace
            key = self.grouped(self.key) if self.per_head_energy else self.key
            self._dot.append(self.energy.as_dot(self.query, key))
        return self._dot[0]

    @property
    def per_head_energy(self) -> bool:
        return getattr(self.energy, "heads", None) not in (None, 1)

    @property
    def learns(self) -> bool:
        """Whether anything in this call will be asked for its gradient."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in self.tensors())

    @property
    def bias_learns(self) -> bool:
        return torch.is_grad_enabled() and any(x.requires_grad for x in _tensors_of(self.bias))

    def tensors(self) -> list[Tensor]:
        found = [self.query, self.key, self.value]
        return found + _tensors_of(self.energy) + _tensors_of(self.bias) + _tensors_of(self.gate)

    def grouped(self, x: Tensor) -> Tensor:
        """Keys or values with each head repeated for its group of query heads, neighbours together as in torch and ONNX."""
        return x if self.groups == 1 else x.repeat_interleave(self.groups, -3)

    def as_many_heads(self, x: Tensor) -> Tensor:
        """Queries, keys or values with all heads, repeated or expanded."""
        if x.shape[-3] == self.heads:
            return x
        return x.expand(*x.shape[:-3], self.heads, *x.shape[-2:]) if x.shape[-3] == 1 else self.grouped(x)

    @property
    def bias_may_mask(self) -> bool:
        """Whether the bias may hold −∞, which masks."""
        return isinstance(self.bias, DenseBias | PositionBias)

    def grid(self, queries: Index = None, keys: Index = None, head: Index = None, batch: Sequence[Index] | None = None) -> Grid:
        return Grid(
            self.Tq,
            self.Tk,
            heads=self.heads,
            leading=self.leading,
            queries=queries,
            keys=keys,
            head=head,
            batch=batch,
            device=self.query.device,
        )

    def four(self, x: Tensor) -> Tensor:
        """x with its leading axes as one: (batch, heads, T, dim)."""
        if x.ndim == 4 and len(self.leading) == 1 and x.shape[0] == self.leading[0]:
            return x
        x = x.expand(*self.leading, *x.shape[-3:])
        return x.reshape(self.sequences, *x.shape[-3:]) if len(self.leading) != 1 else x

    def back(self, out: Tensor) -> Tensor:
        """(batch, heads, Tq, Dv) with the leading axes as they were."""
        return out if len(self.leading) == 1 else out.reshape(*self.leading, *out.shape[-3:])


def _tensors_of(x: object) -> list[Tensor]:
    if isinstance(x, nn.Module):
        return list(x.parameters())
    if isinstance(x, DenseBias):
        return [x.tensor]
    function = getattr(x, "function", None)
    return list(function.parameters()) if isinstance(function, nn.Module) else []


def make_call(query: Tensor, key: Tensor, value: Tensor, **options: Unpack[Options]) -> Call:
    """Check everything that can be checked before work starts."""
    named = (("query", query), ("key", key), ("value", value))
    for name, x in named:
        _check_tensor(name, x)
    query, key, value = _one_dtype(query, key, value)
    flat = all(x.ndim == 2 for x in (query, key, value))
    query, key, value = (x if x.ndim > 2 else x[None] for x in (query, key, value))
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"every key needs its value: {key.shape[-2]} keys (key {tuple(key.shape)}) and {value.shape[-2]} values "
            f"(value {tuple(value.shape)}); give one value per key, on axis −2"
        )
    heads, groups = _heads(query, key, value)
    leading = _leading(query, key, value)
    if query.shape[:-2] != (*leading, heads):  # one query may meet many batches and heads of keys
        query = query.expand(*leading, heads, *query.shape[-2:])
    call = Call(
        query, key, value,
        wrap_energy(options.get("energy", SCALED_DOT)),
        wrap_mask(options.get("mask")),
        wrap_bias(options.get("bias")),
        wrap_normalizer(options.get("normalize", SOFTMAX)),
        _gate(options.get("gate")),
        _softcap(options.get("softcap")),
        _dropout(options.get("dropout", 0.0)),
        leading, heads, groups, flat,
    )  # fmt: skip
    _check_options(call)
    if call.mask is not None and call.mask.hides_nothing(call.Tq, call.Tk):
        call.mask = None
    return call


def _check_options(call: Call) -> None:
    query, leading, heads, Tk = call.query, call.leading, call.heads, call.Tk
    call.energy.check(query, call.key, heads)
    for x in _tensors_of(call.energy):
        if x.device != query.device:
            raise DeviceError(f"{type(call.energy).__name__} is on {x.device} and the query on {query.device}; move one with .to()")
        break
    if call.mask is not None:
        call.mask.check(call.Tq, Tk, heads, leading, query.device)
    if call.bias is not None:
        call.bias.check(query, Tk, heads, leading)
    if isinstance(call.gate, Mask):
        call.gate.check(call.Tq, Tk, heads, leading, query.device)
    elif call.gate is not None:
        call.gate.check(query, Tk, heads, leading)


def _check_tensor(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise OptionError(f"{name} must be a tensor of shape (…, heads, time, dim), got {type(x).__name__}")
    if x.ndim < 2:
        raise ShapeError(f"{name} needs at least (time, dim), got shape {tuple(x.shape)}; add axes with x[None]")
    if not x.is_floating_point():
        raise DtypeError(f"{name} must hold real numbers (float16, bfloat16, float32, float64), got {x.dtype}; use .float()")


def _one_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Same device, same dtype; under autocast the dtype is autocast's, as for torch's own attention."""
    if not query.device == key.device == value.device:
        raise DeviceError(
            f"query is on {query.device}, key on {key.device}, value on {value.device}; move them together with .to()"
        )
    kind = query.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind) and query.dtype != torch.float64:
        to = torch.get_autocast_dtype(kind)
        return query.to(to), key.to(to), value.to(to)
    if not query.dtype == key.dtype == value.dtype:
        raise DtypeError(f"query is {query.dtype}, key {key.dtype}, value {value.dtype}; make them one with .to()")
    return query, key, value


def _heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, int]:
    """(heads, query heads per key head)."""
    q, k, v = query.shape[-3], key.shape[-3], value.shape[-3]
    if k == v and k not in (0, 1) and q > k and q % k == 0:
        return q, q // k
    heads = _broadcast((q,), (k,), (v,))
    if heads is None:
        raise ShapeError(
            f"{q} heads of queries, {k} of keys and {v} of values do not go together (query {tuple(query.shape)}, "
            f"key {tuple(key.shape)}, value {tuple(value.shape)}); give keys and values as many heads as the query, one, or a "
            "number that divides them"
        )
    return heads[0], 1


def _leading(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    leading = _broadcast(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    if leading is None:
        raise ShapeError(
            f"the batch axes of query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} do not "
            "broadcast; axes before (heads, time, dim) must be equal or 1"
        )
    return leading


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The common shape, or None. torch.broadcast_shapes takes longer than a small attention."""
    if all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])
    longest = max(len(shape) for shape in shapes)
    found = []
    for sizes in zip(*((1,) * (longest - len(shape)) + tuple(shape) for shape in shapes), strict=True):
        wide = {n for n in sizes if n != 1}
        if len(wide) > 1:
            return None
        found.append(wide.pop() if wide else 1)
    return tuple(found)


def _softcap(softcap: object) -> float | None:
    if softcap is None:
        return None
    if isinstance(softcap, bool) or not isinstance(softcap, int | float) or not 0 < softcap < math.inf:
        raise OptionError(f"softcap must be a number above 0 or None, got {softcap!r}")
    return float(softcap)


def _dropout(dropout: object) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise OptionError(f"dropout must be in [0, 1), got {dropout!r}")
    return float(dropout)


def wrap_energy(x: EnergyLike) -> Energy:
    if isinstance(x, Energy):
        return x
    if callable(x) and not isinstance(x, type):
        return Custom(x)
    raise OptionError(f"energy must be an Energy such as ScaledDot() or a function of (query, key), got {_called(x)}")


def wrap_mask(x: object) -> Mask | None:
    if x is None or isinstance(x, Mask):
        return x
    if isinstance(x, Tensor):
        return Dense(x)
    raise OptionError(f"mask must be a Mask such as Causal(), a boolean tensor or None, got {_called(x)}")


def wrap_bias(x: BiasLike | None) -> Bias | None:
    if x is None or isinstance(x, Bias):
        return x
    if isinstance(x, Tensor):
        return DenseBias(x)
    if callable(x) and not isinstance(x, type):
        return PositionBias(x)
    raise OptionError(f"bias must be a Bias such as ALiBi(heads), a tensor, a function of two positions or None, got {_called(x)}")


def wrap_normalizer(x: NormalizerLike) -> Normalizer:
    if isinstance(x, Normalizer):
        return x
    if callable(x) and not isinstance(x, type):
        return CustomNormalizer(x)
    raise OptionError(
        f"normalize must be a Normalizer such as Softmax() or a function of the scores, got {_called(x)}; for none use Raw()"
    )


def _gate(x: object) -> Mask | Bias | None:
    if x is None or isinstance(x, Mask | Bias):
        return x
    if isinstance(x, Tensor):
        return Dense(x) if x.dtype == torch.bool else DenseBias(x)
    raise OptionError(f"gate must be a tensor, a Mask such as Window.centered(K) or None, got {_called(x)}")


def _called(x: object) -> str:
    return f"the class {x.__name__} (call it: {x.__name__}(…))" if isinstance(x, type) else repr(x)[:80]
