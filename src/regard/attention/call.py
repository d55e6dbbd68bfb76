"""`Call`: the checked arguments of one attention call, as kernels read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from torch import Tensor, is_grad_enabled, nn
from torch._C import (
    _is_any_autocast_enabled,  # type: ignore[attr-defined]  # four times as fast as asking for one device
)
from torch.cuda import is_current_stream_capturing

from regard.arguments import quoted
from regard.attention.bias import Bias, DenseBias, PositionBias
from regard.attention.devices import check_device
from regard.attention.energy import Additive, Custom, Energy, ProjectedAdditive, ScaledDot
from regard.attention.grid import Grid, Index
from regard.attention.kernel_hints import has_plain_call
from regard.attention.mask import Dense, Mask
from regard.attention.normalize import CustomNormalizer, Normalizer, Softmax
from regard.attention.packed import check_alignment
from regard.attention.precision import DTYPES
from regard.attention.tracing import broadcasts, is_eager
from regard.errors import DeviceError, DtypeError, OptionError, ShapeError

EnergyLike = Energy | Callable[[Tensor, Tensor], Tensor]
MaskLike = Mask | Tensor
BiasLike = Bias | Tensor | Callable[[Tensor, Tensor], Tensor]
NormalizerLike = Normalizer | Callable[[Tensor], Tensor]
GateLike = Mask | Bias | Tensor


class Options(TypedDict, total=False):
    """Options of `attend` that define the result (`kernel` does not)."""

    energy: EnergyLike
    mask: MaskLike | None
    bias: BiasLike | None
    normalize: NormalizerLike
    gate: GateLike | None
    softcap: float | None
    dropout: float


SCALED_DOT, SOFTMAX = ScaledDot(), Softmax()
LONG = 512  # queries from which work per shape (cuDNN's plan, compiling Flex) pays off on a GPU


@dataclass(slots=True)
class Call:
    """Checked arguments of `attend`.

    query (*leading, heads, Tq, Dq); key and value (*leading, heads/groups, Tk, ·), whose leading axes
    broadcast.
    """

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
    leading: tuple[int, ...]  # batch axes
    heads: int  # of the query
    groups: int  # query heads per key head
    squeeze_heads: bool  # inputs were (time, dim): remove the heads axis from the result
    autocast: torch.dtype | None = None  # autocast's dtype, if autocast is enabled
    # Weights that `intervene` sets, (*leading, heads, Tq, Tk), in place of the gated ones; reference only.
    edited: Tensor | None = None

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
        """The batch size: the product of all leading axes."""
        return math.prod(self.leading)

    @property
    def pairs(self) -> int:
        """The number of elements of the attention matrix."""
        return self.sequences * self.heads * self.Tq * self.Tk

    @property
    def is_empty(self) -> bool:
        return not (self.query.numel() and self.key.numel() and self.value.numel())

    @property
    def is_softmax(self) -> bool:
        return self.normalize.is_softmax

    @property
    def temperature(self) -> float:
        return self.normalize.temperature if isinstance(self.normalize, Softmax) else 1.0

    @property
    def per_head_energy(self) -> bool:
        return self.energy.heads not in (None, 1)

    @property
    def requires_grad(self) -> bool:
        """Whether any input or option may require a gradient. Functions may: their closures are unknown."""
        if not torch.is_grad_enabled():
            return False
        if any(x.requires_grad for x in (self.query, self.key, self.value)):
            return True
        return any(_may_require_grad(x) for x in (self.energy, self.bias, self.normalize, self.gate))

    @property
    def bias_requires_grad(self) -> bool:
        return torch.is_grad_enabled() and _may_require_grad(self.bias)

    @property
    def options_use_query(self) -> bool:
        """Whether the bias or the gate is computed from the queries."""
        return any(isinstance(x, Bias) and x.uses_query for x in (self.bias, self.gate))

    @property
    def bias_may_mask(self) -> bool:
        """Whether the bias may contain −∞, which masks."""
        return self.bias is not None and not self.bias.finite

    def options(self) -> tuple[Energy | Mask | Bias | Normalizer, ...]:
        return tuple(
            x for x in (self.energy, self.mask, self.bias, self.normalize, self.gate) if x is not None
        )

    def option_tensors(self) -> list[Tensor] | None:
        """All tensors that the options read; None if an option is a function or does not declare them."""
        all_tensors: list[Tensor] = []
        for option in self.options():
            tensors = option.tensors()
            if tensors is None:
                return None
            all_tensors += tensors
        return all_tensors

    def grouped(self, x: Tensor) -> Tensor:
        """Keys or values with each head repeated for its group of query heads, as in torch and ONNX."""
        return x if self.groups == 1 else x.repeat_interleave(self.groups, -3)

    def with_all_heads(self, x: Tensor) -> Tensor:
        """Queries, keys or values with `heads` heads, repeated or expanded."""
        if x.shape[-3] == self.heads:
            return x
        return x.expand(*x.shape[:-3], self.heads, *x.shape[-2:]) if x.shape[-3] == 1 else self.grouped(x)

    def grid(
        self,
        queries: Index = None,
        keys: Index = None,
        head: Index = None,
        batch: Sequence[Index] | None = None,
    ) -> Grid:
        """The index grid of this call, or of a part of it."""
        return Grid(
            self.Tq, self.Tk, heads=self.heads, leading=self.leading,
            queries=queries, keys=keys, head=head, batch=batch, device=self.query.device,
        )  # fmt: skip

    def autocast_context(self) -> AbstractContextManager[object]:
        """The autocast under which the call ran; an energy may have float32 parameters and half inputs."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.query.device.type, dtype=self.autocast)

    def merge_batch(self, x: Tensor) -> Tensor:
        """Queries, keys or values, (*leading, heads, T, dim) → (batch, heads, T, dim)."""
        if x.ndim == 4 and len(self.leading) == 1 and x.shape[0] == self.leading[0]:
            return x
        x = x.expand(*self.leading, *x.shape[-3:])
        return x.reshape(self.sequences, *x.shape[-3:]) if len(self.leading) != 1 else x

    def merge_pairs(self, x: Tensor) -> Tensor:
        """A mask or bias, (*leading, heads, Tq, Tk) → (batch or 1, heads or 1, Tq, Tk)."""
        if x.ndim > 3 and len(self.leading) != 1:
            return x.expand(*self.leading, *x.shape[-3:]).reshape(self.sequences, *x.shape[-3:])
        return x if x.ndim == 4 else x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))

    def split_batch(self, out: Tensor) -> Tensor:
        """The inverse of `merge_batch`: (batch, heads, Tq, Dv) → (*leading, heads, Tq, Dv)."""
        return out if len(self.leading) == 1 else out.reshape(*self.leading, *out.shape[-3:])


def _may_require_grad(option: Energy | Bias | Normalizer | Mask | None) -> bool:
    if option is None or isinstance(option, Mask):
        return False
    tensors = option.tensors()
    return tensors is None or any(x.requires_grad for x in tensors)


def signature(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    energy: EnergyLike,
    mask: MaskLike | None,
    bias: BiasLike | None,
    normalize: NormalizerLike,
    gate: GateLike | None,
    softcap: float | None,
    dropout: float,
    kernel: str | None,
) -> Hashable | None:
    """A key for cached plans: everything that checks and planning read. None: plan every call.

    Calls with the same signature differ only in the values of their tensors.
    """
    if not is_eager(query, key, value):
        return None
    dtype = query.dtype
    if key.dtype is not dtype or value.dtype is not dtype or query.is_nested:
        return None
    device = capturing = None
    if query.is_cuda:
        device = query.get_device()
        if key.get_device() != device or value.get_device() != device:
            return None
        if (mask is not None or bias is not None) and query.shape[-2] >= LONG:  # Flex may run
            capturing = is_current_stream_capturing()
    elif not (query.is_cpu and key.is_cpu and value.is_cpu):
        return None
    autocast = _is_any_autocast_enabled() and _autocast(query)
    requires_grad = is_grad_enabled() and (query.requires_grad, key.requires_grad, value.requires_grad)
    inputs = (
        query.shape, key.shape, value.shape, dtype, device, capturing, autocast, requires_grad,
        softcap, dropout, kernel,
    )  # fmt: skip
    if energy is SCALED_DOT and normalize is SOFTMAX and bias is None and gate is None:
        if mask is None:
            return inputs
        mask_signature = _option_signature(mask, Dense)
        return None if mask_signature is None else (*inputs, mask_signature)
    options = (
        None if _is_hooked(energy) else _option_signature(energy),
        None if mask is None else _option_signature(mask, Dense),
        None if bias is None else _option_signature(bias, DenseBias),
        _option_signature(normalize),
        None if gate is None else _option_signature(gate),
    )
    given = (True, mask is not None, bias is not None, True, gate is not None)
    if any(x is None and is_given for x, is_given in zip(options, given, strict=True)):
        return None
    return (*inputs, *options)


def _option_signature(option: object, wrap: Callable[[Tensor], Mask | Bias] | None = None) -> Hashable | None:
    """The signature of an option; None if it has none. `wrap` is the class for plain tensors."""
    if isinstance(option, (Mask, Energy, Bias, Normalizer)):
        return option.signature()
    return wrap(option).signature() if isinstance(option, Tensor) and wrap is not None else None


def make_call(query: Tensor, key: Tensor, value: Tensor, **options: Unpack[Options]) -> Call:
    """Check all arguments and bring them into the form that kernels read."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        _check_tensor(name, x)
    autocast = _autocast(query)
    _check_dtypes(query, key, value, autocast)
    squeeze_heads = query.ndim == key.ndim == value.ndim == 2
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"every key needs its value: {key.shape[-2]} keys (key {tuple(key.shape)}) and "
            f"{value.shape[-2]} values (value {tuple(value.shape)}); give one value per key, on axis −2"
        )
    with_heads = [x if x.ndim > 2 else x[None] for x in (query, key, value)]
    heads, groups = _heads(*with_heads)
    leading = _leading(*with_heads)
    call = Call(
        *cast_and_expand(query, key, value, leading, heads, autocast),
        wrap_energy(options.get("energy", SCALED_DOT)),
        wrap_mask(options.get("mask")),
        wrap_bias(options.get("bias")),
        wrap_normalizer(options.get("normalize", SOFTMAX)),
        wrap_gate(options.get("gate")),
        _softcap(options.get("softcap")),
        _dropout(options.get("dropout", 0.0)),
        leading, heads, groups, squeeze_heads, autocast,
    )  # fmt: skip
    _check_options(call)
    if call.mask is not None and call.mask.allows_all(call.Tq, call.Tk):
        call.mask = None
    return call


def cast_and_expand(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    leading: tuple[int, ...],
    heads: int,
    autocast: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cast to autocast's dtype, add a missing heads axis, expand the query to (*leading, heads, Tq, Dq)."""
    if autocast is not None:
        query, key, value = query.to(autocast), key.to(autocast), value.to(autocast)
    query, key, value = (x if x.ndim > 2 else x[None] for x in (query, key, value))
    if query.shape[:-2] != (*leading, heads):
        query = query.expand(*leading, heads, *query.shape[-2:])
    return query, key, value


def _check_options(call: Call) -> None:
    query, leading, heads, Tk = call.query, call.leading, call.heads, call.Tk
    call.energy.check(query, call.key, heads)
    for x in call.energy.tensors() or ():
        check_device(type(call.energy).__name__, "energy", x, query.device)
        if (
            x.dtype != query.dtype
            and call.autocast is None
            and isinstance(call.energy, Additive | ProjectedAdditive)
        ):
            raise DtypeError(
                f"{type(call.energy).__name__} is {x.dtype} and the query {query.dtype}; "
                "convert one with .to()"
            )
    if call.mask is not None:
        call.mask.check(call.Tq, Tk, heads, leading, query.device)
        check_alignment(call.mask, call.bias, call.gate)
    if call.bias is not None:
        call.bias.check(query, Tk, heads, leading)
    call.normalize.check(heads, query.device)
    if isinstance(call.gate, Mask):
        call.gate.check(call.Tq, Tk, heads, leading, query.device)
    elif call.gate is not None:
        call.gate.check(query, Tk, heads, leading)


def _check_tensor(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise OptionError(f"{name} must be a tensor of shape (…, heads, time, dim), got {type(x).__name__}")
    if x.is_nested or x.layout != torch.strided:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise OptionError(
            f"{name} must be a plain tensor, got a {kind} one; pad it and pass mask=Padding(lengths), "
            "or use .to_dense()"
        )
    if x.ndim < 2:
        raise ShapeError(
            f"{name} needs at least (time, dim), got shape {tuple(x.shape)}; add axes with x[None]"
        )
    if x.dtype not in DTYPES:
        raise DtypeError(f"{name} must be float16, bfloat16, float32 or float64, got {x.dtype}; use .float()")


def _autocast(query: Tensor) -> torch.dtype | None:
    kind = query.device.type
    if kind == "meta" or query.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def _check_dtypes(query: Tensor, key: Tensor, value: Tensor, autocast: torch.dtype | None) -> None:
    """Check for one device and one dtype. Under autocast dtypes may differ, as for torch's own attention."""
    if not query.device == key.device == value.device:
        raise DeviceError(
            f"query is on {query.device}, key on {key.device}, value on {value.device}; "
            "move them to one device with .to()"
        )
    if autocast is None and not query.dtype == key.dtype == value.dtype:
        raise DtypeError(
            f"query is {query.dtype}, key {key.dtype}, value {value.dtype}; "
            "convert them to one dtype with .to()"
        )


def _heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, int]:
    """(heads, query heads per key head)."""
    q, k, v = query.shape[-3], key.shape[-3], value.shape[-3]
    if k == v and k not in (0, 1) and q > k and q % k == 0:
        return q, q // k
    heads = _broadcast((q,), (k,), (v,))
    if heads is None:
        raise ShapeError(
            f"{q} heads of queries, {k} of keys and {v} of values do not broadcast "
            f"(query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}); "
            "give keys and values as many heads as the query, one, or a number that divides the query's"
        )
    return heads[0], 1


def _leading(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The broadcast batch axes."""
    leading = _broadcast(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    if leading is None:
        raise ShapeError(
            f"the batch axes of query {tuple(query.shape)}, key {tuple(key.shape)} and "
            f"value {tuple(value.shape)} do not broadcast; axes before (heads, time, dim) must be equal or 1"
        )
    return leading


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The broadcast shape, or None. torch.broadcast_shapes takes longer than a small attention call."""
    if all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])
    ndim = max(len(shape) for shape in shapes)
    broadcast = []
    for sizes in zip(*((1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes), strict=True):
        common = 1
        for n in sizes:
            if common == 1:
                common = n
            elif not broadcasts(n, common):
                return None
        broadcast.append(common)
    return tuple(broadcast)


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
        return Custom(x) if _is_hooked(x) else x
    if callable(x) and not isinstance(x, type):
        return Custom(x)
    raise OptionError(
        f"energy must be an Energy such as ScaledDot() or a function of (query, key), got {_describe(x)}"
    )


def _is_hooked(energy: object) -> bool:
    """True for a module with hooks: kernels compute energies from the parameters and would skip them."""
    return isinstance(energy, nn.Module) and isinstance(energy, Energy) and not has_plain_call(energy)


def wrap_mask(x: object) -> Mask | None:
    if x is None or isinstance(x, Mask):
        return x
    if isinstance(x, Tensor):
        return Dense(x)
    raise OptionError(f"mask must be a Mask such as Causal(), a boolean tensor or None, got {_describe(x)}")


def wrap_bias(x: BiasLike | None) -> Bias | None:
    if x is None or isinstance(x, Bias):
        return x
    if isinstance(x, Tensor):
        return DenseBias(x)
    if callable(x) and not isinstance(x, type):
        return PositionBias(x)
    raise OptionError(
        "bias must be a Bias such as ALiBi(heads), a tensor, a function of two positions or None, "
        f"got {_describe(x)}"
    )


def wrap_normalizer(x: NormalizerLike) -> Normalizer:
    if isinstance(x, Normalizer):
        return x
    if callable(x) and not isinstance(x, type):
        return CustomNormalizer(x)
    raise OptionError(
        f"normalize must be a Normalizer such as Softmax() or a function of the scores, got {_describe(x)}; "
        "for none use Raw()"
    )


def wrap_gate(x: object) -> Mask | Bias | None:
    if x is None or isinstance(x, Mask | Bias):
        return x
    if isinstance(x, Tensor):
        return Dense(x) if x.dtype == torch.bool else DenseBias(x)
    raise OptionError(f"gate must be a tensor, a Mask such as Window.centered(K) or None, got {_describe(x)}")


def _describe(x: object) -> str:
    return f"the class {x.__name__} (call it: {x.__name__}(…))" if isinstance(x, type) else quoted(x)
