"""Keys and values kept between steps, so that a decoder computes each of them once."""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """Keys and values of the tokens so far, (..., heads, T, dim). Room doubles as needed; no gradient passes through it."""

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

    @torch.no_grad()
    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens; gives those of all tokens."""
        end = self.length + key.shape[-2]
        self._key, self._value = self._room(self._key, key, end), self._room(self._value, value, end)
        self._key[..., self.length : end, :] = key
        self._value[..., self.length : end, :] = value
        self.length = end
        return self._key[..., :end, :], self._value[..., :end, :]

    def reorder(self, rows: Tensor) -> None:
        """Keep these batch items, in this order: what a beam search does after each step."""
        if self._key is not None and self._value is not None:
            self._key, self._value = self._key.index_select(0, rows), self._value.index_select(0, rows)

    def _room(self, kept: Tensor | None, new: Tensor, end: int) -> Tensor:
        if kept is not None and kept.shape[-2] >= end:
            return kept
        size = max(end, 16 if kept is None else 2 * kept.shape[-2])
        wide = new.new_empty(*new.shape[:-2], size, new.shape[-1])
        if kept is not None:
            wide[..., : self.length, :] = kept[..., : self.length, :]
        return wide
