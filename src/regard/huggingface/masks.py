"""Transformers' masks as regard masks: causal, sliding, chunked and packed masks become objects, not tensors.

Transformers describes a mask by a function of (batch, head, query, key) positions, built from a few known
functions. These are recognised by identity or by their code and closure. Any other function is evaluated to a
boolean tensor, as Transformers' `sdpa_mask` does, so the mask is always exact.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from regard.attention.mask import And, Dense, Mask
from regard.attention.position_masks import Causal, Documents, Padding, Prefix, Window
from regard.attention.tracing import statically_true, tracer
from regard.errors import ShapeError

MaskFunction = Callable[..., Any]


class ModelMask:
    """A regard mask in place of the 4-D mask tensor of a Transformers model.

    Attention modules pass it to regard unchanged. Model code that computes with it gets the boolean tensor
    (batch, 1, Tq, Tk); code that adds it to scores gets 0 and the dtype's minimum, as in eager attention.
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
        aligned: bool,
        bidirectional: bool,
        device: Any,
    ) -> None:
        self.mask = mask  # None: everything is allowed
        self.size = (batch, 1, Tq, Tk)
        self.keys = keys  # the mask covers this many keys; no query sees the ones after
        self.offset = offset  # key position of query 0; None: the last query is at the last of `keys`
        self.first_key = first_key  # position of key 0 in the text; sliding caches drop earlier keys
        self.aligned = aligned  # queries and keys are positions of one text, unlike in cross-attention
        self.bidirectional = bidirectional  # in an encoder or in cross-attention
        self.made_on = device  # the device of `tensor()`

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.size)

    def tensor(self) -> Tensor:
        """The mask tensor of Transformers' SDPA, (batch, 1, Tq, Tk), True where attention is allowed."""
        batch, _, Tq, Tk = self.size
        allowed = torch.zeros(batch, 1, Tq, Tk, dtype=torch.bool, device=self.made_on)
        allowed[..., : self.keys] = (
            True if self.mask is None else self.mask.dense(Tq, self.keys, self.made_on)
        )
        return allowed

    def contiguous(self) -> ModelMask:
        return self

    def to(self, *args: Any, **options: Any) -> Any:
        """Move to another device; a conversion to another dtype gives a tensor."""
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
        dtypes = (x.dtype for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        dtype = next(dtypes, None) if adds else None

        def dense(x: Any) -> Any:
            if isinstance(x, list | tuple):
                return type(x)(dense(y) for y in x)
            return x if not isinstance(x, ModelMask) else x.tensor() if dtype is None else x.additive(dtype)

        return function(*(dense(x) for x in args), **{name: dense(x) for name, x in kwargs.items()})

    def additive(self, dtype: torch.dtype) -> Tensor:
        """(batch, 1, Tq, Tk) with 0 where attention is allowed and the dtype's minimum elsewhere."""
        zeros = torch.zeros(self.size, dtype=dtype, device=self.made_on)
        return zeros.masked_fill(~self.tensor(), torch.finfo(dtype).min)

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
class MaskRequest:
    """One request for a mask: the positions of queries and keys in the text."""

    batch: int
    Tq: int
    Tk: int
    q_offset: int | Tensor
    kv_offset: int
    device: Any
    use_vmap: bool

    @property
    def offset(self) -> int | Tensor:
        """Key position of query 0."""
        # A static cache updates its counter q_offset in place; the difference is a new tensor.
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
    **_: Any,  # read by SDPA and eager only: dtype, config, whether a mask may be omitted
) -> ModelMask:
    """The mask of one forward pass as a `ModelMask`; called by `AttentionMaskInterface`."""
    if isinstance(attention_mask, ModelMask):  # made earlier by generate, for a static cache
        return attention_mask
    if attention_mask is not None:
        _check_padding_mask(attention_mask, batch_size)
    if isinstance(q_offset, Tensor) and _may_read(q_offset, q_length):
        q_offset = int(q_offset)
    request = MaskRequest(batch_size, q_length, kv_length, q_offset, kv_offset, device, use_vmap)
    low, high, masks = _split_bands(_translate(mask_function, request))
    # A static cache is longer than the text so far: drop the keys after the last query if no query sees them.
    keys, offset = kv_length, request.offset
    no_future = high is not None and high <= 0
    if no_future and not isinstance(offset, Tensor) and not statically_true(kv_length == offset + q_length):
        keys = min(kv_length, offset + q_length)
        if keys < kv_length:
            request = replace(request, Tk=keys)
            masks = _split_bands(_translate(mask_function, request))[2]
    if not isinstance(offset, Tensor) and statically_true(offset == keys - q_length):
        offset = None  # the last query is aligned with the last key
    if (low, high) == (None, 0):
        masks.insert(0, Causal(offset=offset))
    elif low is not None or high is not None:
        masks.insert(0, Window(None if low is None else -low, high, offset))
    if attention_mask is not None:
        masks += _padding(attention_mask, request)
    bidirectional = mask_function is masking_utils.bidirectional_mask_function
    return ModelMask(
        reduce(And, masks) if masks else None, batch_size, q_length, kv_length,
        keys=keys, offset=offset, first_key=kv_offset, bidirectional=bidirectional,
        aligned=not bidirectional or statically_true(q_length == kv_length), device=torch.device(device),
    )  # fmt: skip


def _may_read(counter: Tensor, q_length: int) -> bool:
    """True if a static cache's counter of filled keys may be read: a GPU would wait for it at each step."""
    return tracer(counter) is None and (counter.is_cpu or q_length > 1)


def _split_bands(masks: list[Mask]) -> tuple[int | None, int | None, list[Mask]]:
    """Causal masks and windows as one band low ≤ key − query ≤ high, and the other masks."""
    low = high = None
    others: list[Mask] = []
    for mask in masks:
        if not isinstance(mask, Causal | Window):
            others.append(mask)
            continue
        least, most = mask.band()
        if least is not None:
            low = least if low is None else max(low, least)
        if most is not None:
            high = most if high is None else min(high, most)
    return low, high, others


def _codes(*names: str) -> dict[CodeType, str]:
    """The code objects of the functions that these factories of Transformers return."""
    codes = {}
    for name in names:
        factory = getattr(masking_utils, name, None)
        constants = () if factory is None else factory.__code__.co_consts
        inner = [c for c in constants if isinstance(c, CodeType)]
        if len(inner) == 1:
            codes[inner[0]] = name
    return codes


_INNER = _codes(
    "sliding_window_overlay", "sliding_window_bidirectional_overlay", "chunked_overlay", "blockwise_overlay",
    "padding_mask_function", "packed_sequence_mask_function",
)  # fmt: skip
# Selected by name: on some versions of Python, and_masks and or_masks also hold a generator expression.
_COMBINED = {
    code: name
    for name, inner in (("and_masks", "and_mask"), ("or_masks", "or_mask"))
    for code in getattr(masking_utils, name).__code__.co_consts
    if isinstance(code, CodeType) and code.co_name == inner
}


def _translate(function: MaskFunction, request: MaskRequest) -> list[Mask]:
    """The function as a list of masks, combined by AND; an empty list allows everything."""
    if function is masking_utils.causal_mask_function:
        return [Causal(offset=request.offset)]
    if function is masking_utils.bidirectional_mask_function:
        return []
    code = None if torch.compiler.is_compiling() else getattr(function, "__code__", None)
    if code in _COMBINED:
        functions = _closure(function)["mask_functions"]
        if _COMBINED[code] == "and_masks":
            return [mask for f in functions for mask in _translate(f, request)]
        alternatives = [_translate(f, request) for f in functions]
        if not all(alternatives):  # one allows everything
            return []
        return [reduce(operator.or_, (reduce(operator.and_, masks) for masks in alternatives))]
    if code in _INNER:
        return [_known_mask(_INNER[code], function, request)]
    return [Dense(_evaluate(function, request))]


def _closure(function: MaskFunction) -> dict[str, Any]:
    contents = (cell.cell_contents for cell in function.__closure__ or ())
    return dict(zip(function.__code__.co_freevars, contents, strict=True))


def _known_mask(name: str, function: MaskFunction, request: MaskRequest) -> Mask:
    """The mask of one of Transformers' functions, from the variables of its closure."""
    closure = _closure(function)
    if name == "sliding_window_overlay" and closure["sliding_window"] > 0:  # key > query − size
        return Window(closure["sliding_window"] - 1, None, request.offset)
    if name == "sliding_window_bidirectional_overlay":  # |query − key| ≤ size
        return Window(closure["sliding_window"], closure["sliding_window"], request.offset)
    if name == "chunked_overlay":
        start = closure["left_padding"].to(request.device)[:, None]
        chunk = lambda position: torch.div(position - start, closure["chunk_size"], rounding_mode="floor")  # noqa: E731
        return Documents(chunk(request.queries()), chunk(request.keys()))
    if name == "blockwise_overlay":  # same block, and −1 is no block
        ids = closure["block_sequence_ids"].to(request.device)
        key_ids = ids[:, request.keys()]
        return Documents(ids[:, request.queries()], torch.where(key_ids < 0, -2, key_ids))
    if name == "packed_sequence_mask_function":
        ids = closure["packed_sequence_mask"].to(request.device)
        return Documents(ids[:, request.queries()], ids[:, request.keys()])
    if name == "padding_mask_function":
        return Dense(closure["padding_mask"].to(request.device)[:, None, None, :][..., request.keys()].bool())
    return Dense(_evaluate(function, request))


def _evaluate(function: MaskFunction, request: MaskRequest) -> Tensor:
    """The mask as a tensor (batch, 1, Tq, Tk), computed by Transformers."""
    allowed = masking_utils.sdpa_mask(
        batch_size=request.batch, q_length=request.Tq, kv_length=request.Tk,
        q_offset=request.q_offset, kv_offset=request.kv_offset,  # type: ignore[arg-type]
        mask_function=function, attention_mask=None,
        allow_is_causal_skip=False, allow_is_bidirectional_skip=False,
        use_vmap=request.use_vmap, device=request.device,
    )  # fmt: skip
    assert allowed is not None
    return allowed


def _check_padding_mask(mask: Tensor, batch: int) -> None:
    """Check the mask of a caller; Transformers passes a 4-D one directly to the layers."""
    shape = "attention_mask is (batch, Tk) of 0 and 1, or (batch, 1 or heads, Tq, Tk)"
    if mask.ndim != 2:
        fix = "; pass attention_mask[:, None]" if mask.ndim == 3 else ""
        raise ShapeError(f"attention_mask has the shape {tuple(mask.shape)}; {shape}{fix}")
    if not torch.compiler.is_compiling() and len(mask) not in (1, batch):
        raise ShapeError(f"attention_mask has the shape {tuple(mask.shape)} for a batch of {batch}; {shape}")


def _padding(is_token: Tensor, request: MaskRequest) -> list[Mask]:
    """The 2-D attention mask, True for tokens, as masks: none, padding on either side, or dense."""
    # is_token is (batch, text so far); later keys do not exist yet.
    if (missing := request.kv_offset + request.Tk - is_token.shape[-1]) > 0:
        is_token = torch.nn.functional.pad(is_token, (0, missing))
    is_token = is_token[:, request.kv_offset : request.kv_offset + request.Tk].to(
        device=request.device, dtype=torch.bool
    )
    if tracer(is_token) is not None or isinstance(request.q_offset, Tensor):
        return [Dense(is_token[:, None, None, :])]
    position = torch.arange(request.Tk, device=is_token.device)
    start = is_token.int().argmax(-1)
    stop = start + is_token.sum(-1)
    is_range = (is_token == (position >= start[:, None]) & (position < stop[:, None])).all()
    # One synchronization per forward pass, as in Transformers.
    is_range, left, right = torch.stack([is_range, (start > 0).any(), (stop < request.Tk).any()]).tolist()
    if not is_range:
        return [Dense(is_token[:, None, None, :])]
    return [*([~Prefix(start)] if left else []), *([Padding(stop)] if right else [])]
