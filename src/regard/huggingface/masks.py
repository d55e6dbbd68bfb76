"""The masks of Transformers as regard masks: causal, sliding, chunked and packed stay rules that kernels can read.

Transformers describes a mask by a function of (batch, head, query, key) positions, built from a few known functions. Those are
recognised by identity or by their code and closure. Any other function is evaluated into a boolean tensor, as Transformers'
own `sdpa_mask` does, so that the mask is always exact.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from regard.attention.mask import And, Dense, Mask
from regard.attention.position_masks import Causal, Documents, Padding, Prefix, Window
from regard.attention.tracing import statically_true, tracer

MaskFunction = Callable[..., Any]


class ModelMask:
    """A regard mask that travels through a Transformers model where a 4-D mask is expected.

    Attention modules hand it on to regard as it is. Model code that computes with it gets the boolean tensor (batch, 1, Tq, Tk);
    code that adds it to scores gets 0 and the smallest number, as in Transformers' eager attention.
    """

    def __init__(
        self,
        mask: Mask | None,
        batch: int,
        Tq: int,
        Tk: int,
        *,
        keys: int,
        offset: int | Tensor | None,
        first_key: int,
        lines_up: bool,
        both_ways: bool,
        device: Any,
    ) -> None:
        self.mask = mask  # None: everything is allowed
        self.size = (batch, 1, Tq, Tk)
        self.keys = keys  # keys from here on are seen by no query, and the mask is made for those before
        self.offset = (
            offset  # where query 0 stands among the keys; None: the last query meets the last of `keys`
        )
        self.first_key = first_key  # the position of key 0 in the text; sliding caches drop the keys before
        self.lines_up = (
            lines_up  # queries and keys are positions of one text, as they are not in cross-attention
        )
        self.both_ways = both_ways  # of an encoder, or cross-attention
        self.made_on = device

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.size)

    def tensor(self) -> Tensor:
        """The mask as Transformers' SDPA would get it, (batch, 1, Tq, Tk), True where attention is allowed."""
        batch, _, Tq, Tk = self.size
        allowed = torch.zeros(batch, 1, Tq, Tk, dtype=torch.bool, device=self.made_on)
        allowed[..., : self.keys] = (
            True if self.mask is None else self.mask.dense(Tq, self.keys, self.made_on)
        )
        return allowed

    def contiguous(self) -> ModelMask:
        return self

    def to(self, *args: Any, **options: Any) -> Any:
        """On another device it stays a rule; as another dtype it is a tensor."""
        device = options.get("device", args[0] if args else None)
        if not isinstance(device, str | int | torch.device) or options.get("dtype") or len(args) > 1:
            return self.tensor().to(*args, **options)
        device = torch.device(device)
        moved = object.__new__(ModelMask)
        mask = None if self.mask is None else self.mask.to(device)
        offset = self.offset.to(device) if isinstance(self.offset, Tensor) else self.offset
        moved.__dict__.update(self.__dict__, mask=mask, offset=offset, made_on=device)
        return moved

    def __getitem__(self, index: Any) -> Any:
        return self.tensor()[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "size" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        adds = function.__name__.strip("_") in ("add", "radd", "iadd")
        dtype = (
            next((x.dtype for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
            if adds
            else None
        )

        def dense(x: Any) -> Any:
            if isinstance(x, list | tuple):
                return type(x)(dense(y) for y in x)
            return x if not isinstance(x, ModelMask) else x.tensor() if dtype is None else x.additive(dtype)

        return function(*(dense(x) for x in args), **{name: dense(x) for name, x in kwargs.items()})

    def additive(self, dtype: torch.dtype) -> Tensor:
        """(batch, 1, Tq, Tk) with 0 where attention is allowed."""
        return torch.zeros(self.size, dtype=dtype, device=self.made_on).masked_fill(
            ~self.tensor(), torch.finfo(dtype).min
        )

    def __add__(self, other: Any) -> Any:
        return self.additive(other.dtype) + other if isinstance(other, Tensor) else NotImplemented

    __radd__ = __add__

    def __repr__(self) -> str:
        return f"ModelMask({self.mask}, shape={tuple(self.size)})"

    __str__ = __repr__


def _as_tensor(name: str) -> Callable[..., Any]:
    return lambda self, *others: getattr(operator, name)(
        self.tensor(), *(x.tensor() if isinstance(x, ModelMask) else x for x in others)
    )


for _name in ("and_", "or_", "xor", "invert", "mul", "eq", "ne"):
    setattr(ModelMask, f"__{_name.strip('_')}__", _as_tensor(_name))
ModelMask.__hash__ = object.__hash__


@dataclass
class _Asked:
    """One request for a mask: queries and keys by their positions in the text."""

    batch: int
    Tq: int
    Tk: int
    q_offset: int | Tensor
    kv_offset: int
    device: Any
    use_vmap: bool

    @property
    def offset(self) -> int | Tensor:
        """Where query 0 stands among the keys. A static cache changes its counter in place; a difference is a new tensor."""
        return self.q_offset - self.kv_offset

    def queries(self) -> Tensor:
        return torch.arange(self.Tq, device=self.device) + self.q_offset

    def keys(self) -> Tensor:
        return torch.arange(self.Tk, device=self.device) + self.kv_offset


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | ModelMask | None = None,
    use_vmap: bool = False,
    device: Any = "cpu",
    **_: Any,  # what SDPA and eager read: dtype, config, whether a mask may be left out
) -> ModelMask:
    """Transformers' request for a mask, answered by a rule. This is what `AttentionMaskInterface` calls."""
    if isinstance(attention_mask, ModelMask):  # generate made it before, for a static cache
        return attention_mask
    if isinstance(q_offset, Tensor) and _may_read(q_offset, q_length):
        q_offset = int(q_offset)
    asked = _Asked(batch_size, q_length, kv_length, q_offset, kv_offset, device, use_vmap)
    low, high, parts = _split_bands(_translate(mask_function, asked))
    # A static cache is longer than the text so far. No query sees what lies behind the last query.
    keys, offset = kv_length, asked.offset
    if (
        high is not None
        and high <= 0
        and not isinstance(offset, Tensor)
        and not statically_true(kv_length == offset + q_length)
    ):
        keys = min(kv_length, offset + q_length)
        if keys < kv_length:
            asked = replace(asked, Tk=keys)
            parts = _split_bands(_translate(mask_function, asked))[2]
    at = None if not isinstance(offset, Tensor) and statically_true(offset == keys - q_length) else offset
    if (low, high) == (None, 0):
        parts.insert(0, Causal(offset=at))
    elif low is not None or high is not None:
        parts.insert(0, Window(None if low is None else -low, high, at))
    if attention_mask is not None:
        parts += _padding(attention_mask, asked)
    mask = None
    for part in parts:
        mask = part if mask is None else And(mask, part)
    both_ways = mask_function is masking_utils.bidirectional_mask_function
    lines_up = not both_ways or statically_true(q_length == kv_length)
    return ModelMask(
        mask, batch_size, q_length, kv_length,
        keys=keys, offset=at, first_key=kv_offset, lines_up=lines_up, both_ways=both_ways, device=torch.device(device),
    )  # fmt: skip


def _may_read(counter: Tensor, q_length: int) -> bool:
    """A static cache counts in a tensor. Reading it tells which keys are filled; a decoding step on a GPU would have to wait."""
    return tracer(counter) is None and (counter.is_cpu or q_length > 1)


def _split_bands(parts: list[Mask]) -> tuple[int | None, int | None, list[Mask]]:
    """Causal masks and windows as one band low ≤ key − query ≤ high, and the other masks."""
    low = high = None
    rest: list[Mask] = []
    for part in parts:
        if not isinstance(part, Causal | Window):
            rest.append(part)
            continue
        least, most = part.band()
        if least is not None:
            low = least if low is None else max(low, least)
        if most is not None:
            high = most if high is None else min(high, most)
    return low, high, rest


def _codes(*names: str) -> dict[CodeType, str]:
    """The code of the function that each of these factories of Transformers returns."""
    found = {}
    for name in names:
        factory = getattr(masking_utils, name, None)
        inner = (
            [c for c in factory.__code__.co_consts if isinstance(c, CodeType)] if factory is not None else []
        )
        if len(inner) == 1:
            found[inner[0]] = name
    return found


# and_masks and or_masks also hold the code of a generator expression on some versions of Python.
_INNER = _codes(
    "sliding_window_overlay", "sliding_window_bidirectional_overlay", "chunked_overlay", "blockwise_overlay",
    "padding_mask_function", "packed_sequence_mask_function",
)  # fmt: skip
_JOINED = {
    code: name
    for name, inner in (("and_masks", "and_mask"), ("or_masks", "or_mask"))
    for code in getattr(masking_utils, name).__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == inner
}


def _translate(function: MaskFunction, asked: _Asked) -> list[Mask]:
    """Masks that all must allow a pair; an empty list allows everything."""
    if function is masking_utils.causal_mask_function:
        return [Causal(offset=asked.offset)]
    if function is masking_utils.bidirectional_mask_function:
        return []
    code = None if torch.compiler.is_compiling() else getattr(function, "__code__", None)
    if code in _JOINED:
        functions = _closure(function)["mask_functions"]
        if _JOINED[code] == "and_masks":
            return [part for f in functions for part in _translate(f, asked)]
        either: Mask | None = None
        for f in functions:
            parts = _translate(f, asked)
            if not parts:
                return []
            every = parts[0]
            for part in parts[1:]:
                every = every & part
            either = every if either is None else either | every
        return [] if either is None else [either]
    if code in _INNER:
        return [_rule(_INNER[code], function, asked)]
    return [Dense(_evaluate(function, asked))]


def _closure(function: MaskFunction) -> dict[str, Any]:
    return dict(
        zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__ or ()), strict=True)
    )


def _rule(name: str, function: MaskFunction, asked: _Asked) -> Mask:
    """The mask of one of Transformers' functions, from what the function closes over."""
    held = _closure(function)
    if name == "sliding_window_overlay" and held["sliding_window"] > 0:  # key > query − size
        return Window(held["sliding_window"] - 1, None, asked.offset)
    if name == "sliding_window_bidirectional_overlay":  # |query − key| ≤ size
        return Window(held["sliding_window"], held["sliding_window"], asked.offset)
    if name == "chunked_overlay":
        start = held["left_padding"].to(asked.device)[:, None]
        chunk = lambda at: torch.div(at - start, held["chunk_size"], rounding_mode="floor")  # noqa: E731
        return Documents(chunk(asked.queries()), chunk(asked.keys()))
    if name == "blockwise_overlay":  # same block, and −1 is no block
        ids = held["block_sequence_ids"].to(asked.device)
        key_ids = ids[:, asked.keys()]
        return Documents(ids[:, asked.queries()], torch.where(key_ids < 0, -2, key_ids))
    if name == "packed_sequence_mask_function":
        ids = held["packed_sequence_mask"].to(asked.device)
        return Documents(ids[:, asked.queries()], ids[:, asked.keys()])
    if name == "padding_mask_function":
        return Dense(held["padding_mask"].to(asked.device)[:, None, None, :][..., asked.keys()].bool())
    return Dense(_evaluate(function, asked))


def _evaluate(function: MaskFunction, asked: _Asked) -> Tensor:
    """(batch, 1, Tq, Tk), by Transformers itself."""
    found = masking_utils.sdpa_mask(
        batch_size=asked.batch, q_length=asked.Tq, kv_length=asked.Tk,
        q_offset=asked.q_offset, kv_offset=asked.kv_offset,  # type: ignore[arg-type]
        mask_function=function, attention_mask=None, allow_is_causal_skip=False, allow_is_bidirectional_skip=False,
        use_vmap=asked.use_vmap, device=asked.device,
    )  # fmt: skip
    assert found is not None
    return found


def _padding(real: Tensor, asked: _Asked) -> list[Mask]:
    """The 2-D attention mask, True for real tokens: nothing, padding on either side, or a row of keys per sequence."""
    # (batch, text so far); keys beyond it are not there yet
    if (missing := asked.kv_offset + asked.Tk - real.shape[-1]) > 0:
        real = torch.nn.functional.pad(real, (0, missing))
    real = real[:, asked.kv_offset : asked.kv_offset + asked.Tk].to(device=asked.device, dtype=torch.bool)
    if tracer(real) is not None or isinstance(asked.q_offset, Tensor):
        return [Dense(real[:, None, None, :])]
    at = torch.arange(asked.Tk, device=real.device)
    start = real.int().argmax(-1)
    stop = start + real.sum(-1)
    one_range = (real == (at >= start[:, None]) & (at < stop[:, None])).all()
    # Transformers reads the mask once per forward pass, too.
    together, left, right = torch.stack([one_range, (start > 0).any(), (stop < asked.Tk).any()]).tolist()
    if not together:
        return [Dense(real[:, None, None, :])]
    return [*([~Prefix(start)] if left else []), *([Padding(stop)] if right else [])]
