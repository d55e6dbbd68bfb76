"""Key/value caches for incremental decoding.

`Cache` grows as needed; all its rows have the same length. `StaticCache` allocates its memory once; each row
has its own length.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from regard.arguments import integer, quoted
from regard.attention.bias import Bias
from regard.attention.call import MaskLike, wrap_mask
from regard.attention.devices import as_device
from regard.attention.mask import Mask, check_per_sequence, only_tensors, tensor_signature
from regard.attention.position_masks import Causal, Padding
from regard.attention.tracing import can_read_values, statically_true
from regard.errors import DeviceError, DtypeError, OptionError, ShapeError

if TYPE_CHECKING:
    from regard.layers.multihead import MultiHead

Option = TypeVar("Option")
BLOCK = 64  # on a CPU, `append` returns keys in multiples of this: less to read, few distinct shapes


class Cache:
    """Keys and values of the tokens so far, (..., heads, T, dim).

    >>> layer, cache = regard.MultiHead(8, heads=2).eval(), regard.Cache()
    >>> x = torch.randn(1, 3, 8)
    >>> steps = [layer(x[:, t : t + 1], cache=cache) for t in range(3)]
    >>> torch.allclose(torch.cat(steps, 1), layer(x, mask=regard.Causal()), atol=1e-5)
    True

    Capacity doubles as needed; no gradients.
    """

    def __init__(self) -> None:
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    @property
    def key(self) -> Tensor | None:
        return None if self._key is None else self._key[..., : self.length, :]

    @property
    def value(self) -> Tensor | None:
        return None if self._value is None else self._value[..., : self.length, :]

    @property
    def next_position(self) -> int | Tensor:
        """Position of the next token: one integer, or one per row."""
        return self.length

    @torch.no_grad()
    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens; returns those of all tokens."""
        self._check(key, value)
        end = self.length + key.shape[-2]
        self._key, self._value = self._grow(self._key, key, end), self._grow(self._value, value, end)
        self._key[..., self.length : end, :] = key
        self._value[..., self.length : end, :] = value
        self.length = end
        return self._key[..., :end, :], self._value[..., :end, :]

    def reorder(self, rows: Tensor) -> None:
        """Select these batch items, in this order, as beam search does after each step."""
        if not isinstance(rows, Tensor) or rows.ndim != 1 or rows.dtype not in (torch.int32, torch.int64):
            got = f"{rows.dtype} of shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else quoted(rows)
            raise OptionError(f"reorder takes a tensor of row indices, int64 of shape (rows,), got {got}")
        if self._key is not None and self._value is not None:
            self._key, self._value = self._key.index_select(0, rows), self._value.index_select(0, rows)

    def crop(self, length: int) -> None:
        """Drop all tokens after the first `length`, as speculative decoding does with rejected tokens."""
        self.length = min(self.length, integer("crop's length", length, 0))

    def mask(self, mask: MaskLike | None = None) -> MaskLike | None:
        """The mask for the tokens appended last; here `mask` itself."""
        return mask

    def with_offset(self, option: Option) -> Option:
        """A bias or gate shifted to the positions of the tokens appended last; here `option` itself."""
        return option

    def _check(self, key: Tensor, value: Tensor) -> None:
        """Raise unless these tokens fit those in the cache: copying them would broadcast or round."""
        if key.shape[-2] != value.shape[-2]:
            raise ShapeError(
                f"every key needs its value: {key.shape[-2]} new keys and {value.shape[-2]} new values"
            )
        for name, x, memory in (("key", key, self.key), ("value", value, self.value)):
            if memory is None:
                continue
            *leading, _, dim = memory.shape
            if (*x.shape[:-2], x.shape[-1]) != (*leading, dim):
                wanted = ", ".join(map(str, (*leading, "k", dim)))
                raise ShapeError(f"this cache takes a {name} of shape ({wanted}), got {tuple(x.shape)}")
            if x.dtype != memory.dtype:
                raise DtypeError(
                    f"the cache holds {memory.dtype} and the {name} is {x.dtype}; "
                    f"make the cache with dtype={x.dtype} or convert the {name}"
                )
            if x.device != memory.device:
                raise DeviceError(
                    f"the cache is on {memory.device} and the {name} on {x.device}; "
                    f"make it with device={str(x.device)!r}"
                )

    def _grow(self, memory: Tensor | None, new: Tensor, end: int) -> Tensor:
        """Memory with capacity for `end` tokens and the contents of the old one."""
        if memory is not None and memory.shape[-2] >= end:
            return memory
        capacity = max(end, 16 if memory is None else 2 * memory.shape[-2])
        grown = new.new_empty(*new.shape[:-2], capacity, new.shape[-1])
        if memory is not None:
            grown[..., : self.length, :] = memory[..., : self.length, :]
        return grown


class StaticCache(Cache):
    """Keys and values in memory of a fixed size, (batch, heads, max_len, dim); each row has its own length.

    >>> cache = StaticCache(batch=2, heads=1, max_len=8, dim=4)
    >>> q = k = v = torch.randn(2, 1, 3, 4)
    >>> keys, values = cache.append(k, v)
    >>> out = regard.attend(q, keys, values, mask=cache.mask(regard.Causal()))

    Memory is updated in place and never reallocated, so a step compiles with fullgraph=True. Positions beyond
    a row's length hold zeros. `lengths`, (batch,), is updated in place too. No gradient passes through the
    cache.
    """

    def __init__(
        self,
        batch: int,
        heads: int,
        max_len: int,
        dim: int,
        *,
        value_dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        value_dim = dim if value_dim is None else value_dim
        sizes = dict(batch=batch, heads=heads, max_len=max_len, dim=dim, value_dim=value_dim)
        for name, n in sizes.items():
            integer(f"StaticCache's {name}", n)
        if dtype is not None and (
            not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point or dtype.is_complex)
        ):
            raise OptionError(
                f"StaticCache's dtype must be a floating-point torch.dtype or None, got {quoted(dtype)}"
            )
        device = None if device is None else as_device(device)
        self.max_len = max_len
        self._keys = torch.zeros(batch, heads, max_len, dim, dtype=dtype, device=device)
        self._values = torch.zeros(batch, heads, max_len, value_dim, dtype=dtype, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=self._keys.device)
        self._starts = torch.zeros_like(self.lengths)  # lengths before the last append
        # Did the last append add one token per row? None: no new tokens. A count would be a constant in a
        # compiled graph.
        self._one_new: bool | None = None

    @classmethod
    def of(cls, layer: MultiHead, batch: int, max_len: int) -> StaticCache:
        """An empty cache for a layer's self-attention, with its key heads, widths, dtype and device."""
        if not hasattr(layer, "key_heads"):
            kind = type(layer).__name__
            raise OptionError(
                f"StaticCache.of takes a MultiHead, got {kind}; "
                "give the sizes, StaticCache(batch, heads, max_len, dim)"
            )
        weight = next(layer.parameters())
        sizes = batch, layer.key_heads, max_len, layer.head_dim
        return cls(*sizes, value_dim=layer.value_head_dim, dtype=weight.dtype, device=weight.device)

    @property
    def key(self) -> Tensor:
        """All keys, (batch, heads, max_len, dim), including unused positions."""
        return self._keys

    @property
    def value(self) -> Tensor:
        """All values, (batch, heads, max_len, value_dim), including unused positions."""
        return self._values

    @property
    def length(self) -> int:
        """Length of the longest row. On a GPU this synchronizes; `lengths` does not."""
        return int(self.lengths.max())

    @property
    def next_position(self) -> Tensor:
        return self.lengths.clone()

    @torch.no_grad()
    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append k tokens to every row, (batch, heads, k, dim); returns the keys and values to attend to.

        These are views that include all filled positions: on a CPU up to the next multiple of 64, under
        torch.compile and on a GPU all memory. A row without room is a ShapeError on a CPU. Under
        torch.compile and on a GPU, where reading `lengths` would synchronize, it is an assertion in the
        graph: a RuntimeError with the same message on a CPU, a failed CUDA assertion on a GPU.
        """
        self._check(key, value)
        new = key.shape[-2]
        longest = self._check_room(new)
        positions = self.lengths[:, None] + torch.arange(new, device=self.lengths.device)  # (batch, k)
        rows = torch.arange(positions.shape[0], device=positions.device)[:, None]
        # (batch, heads, k, dim) → (batch, k, heads, dim). torch.compile would turn scatter_ into a copy of
        # all memory.
        self._keys[rows, :, positions] = key.transpose(1, 2)
        self._values[rows, :, positions] = value.transpose(1, 2)
        self._starts.copy_(self.lengths)
        self.lengths += new
        self._one_new = statically_true(new == 1)
        if longest is None:
            return self._keys, self._values
        end = min(self.max_len, -(-(longest + new) // BLOCK) * BLOCK)
        return self._keys[:, :, :end], self._values[:, :, :end]

    @torch.no_grad()
    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row rows[i], in place. One index per row; a row may be taken several times."""
        if not isinstance(rows, Tensor) or rows.shape != self.lengths.shape:
            got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ShapeError(
                f"this cache has a fixed number of rows, {len(self.lengths)}; "
                f"reorder takes one index for each, got {got}"
            )
        if can_read_values(rows) and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < len(rows):
            raise OptionError(f"reorder's rows are 0 to {len(rows) - 1}, got {rows.tolist()}")
        for x in (self._keys, self._values, self.lengths, self._starts):
            x.copy_(x.index_select(0, rows))

    @torch.no_grad()
    def crop(self, length: int | Tensor) -> None:
        """Drop all tokens after the first `length` of each row and zero their memory.

        `length` is one integer or one per row; shorter rows are unchanged. After a prefill of padded prompts,
        crop(prompt_lengths) removes the padding.
        """
        if isinstance(length, Tensor):
            if length.is_floating_point() or length.dtype == torch.bool:
                raise DtypeError(f"crop takes integers, got {length.dtype}")
            check_per_sequence("crop's length", length, self.lengths.shape, self.lengths.device)
            cropped = torch.minimum(self.lengths, length.clamp(min=0))
        else:
            cropped = self.lengths.clamp(max=integer("crop's length", length, 0))
        self.lengths.copy_(cropped)
        empty = torch.arange(self.max_len, device=cropped.device) >= cropped[:, None]  # (batch, max_len)
        empty = empty[:, None, :, None]
        self._keys.masked_fill_(empty, 0.0)
        self._values.masked_fill_(empty, 0.0)
        self._one_new = None

    def mask(self, mask: MaskLike | None = None) -> Mask:
        """The mask for the tokens appended last: `mask` shifted to their positions, and only filled keys.

        With Causal(), new token i of row b sees the keys up to its own position, i + the row's length before
        the append.
        """
        mask, offset = wrap_mask(mask), self._offset()
        if type(mask) is Causal and mask.offset is None:
            # Causal alone excludes unfilled keys: the last token is at the last filled position.
            return Padding(self.lengths.clone(), finite=True) if self._one_new else _CausalInCache(offset)
        filled = Padding(self.lengths.clone(), finite=True)
        return filled if mask is None else filled & mask.with_offset(offset)

    def with_offset(self, option: Option) -> Option:
        """A bias or gate shifted to the positions of the tokens appended last.

        Tensors are returned unchanged.
        """
        return option.with_offset(self._offset()) if isinstance(option, Mask | Bias) else option  # type: ignore[return-value]

    def _offset(self) -> Tensor:
        """Position of the first new token of each row."""
        if self._one_new is None:
            raise OptionError(
                "the cache has no new tokens; append keys and values before asking for their mask or bias"
            )
        return self._starts.clone()

    def _check_room(self, new: int) -> int | None:
        """Check that every row has room for `new` tokens.

        Returns the longest length, None if it cannot be read.
        """
        room = f"the cache has room for {self.max_len} tokens in a row"
        if statically_true(new > self.max_len):
            raise ShapeError(f"{room} and cannot take {new} more; make it with a larger max_len")
        if not can_read_values(self.lengths):
            # The message omits the number of new tokens: torch.compile would compile once per number.
            message = f"{room} and a row cannot take the new ones; make it with a larger max_len, or crop it"
            torch._assert_async((self.lengths <= self.max_len - new).all(), message)  # type: ignore[attr-defined]
            return None
        longest = self.length
        if longest + new > self.max_len:
            fix = f"make it with max_len={longest + new} or more, or crop it"
            raise ShapeError(f"{room} and a row of {longest} cannot take {new} more; {fix}")
        return longest


class _CausalInCache(Causal):
    """Causal over a StaticCache: offsets are ≥ 0, so every query sees a key; unseen keys are finite."""

    def covers(self, Tq: int, Tk: int) -> bool:
        return statically_true(Tq > 0)

    def signature(self) -> Hashable | None:
        return _CausalInCache, tensor_signature(self.offset)

    def tensors(self) -> tuple[Tensor, ...] | None:
        return only_tensors(self.offset)
