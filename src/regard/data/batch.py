"""A batch of token ids, as models are trained on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from regard.arguments import integer, quoted
from regard.errors import OptionError, ShapeError

_AXES = {"target": 2, "target_lengths": 1, "rows": 1, "source": 2, "source_lengths": 1}


@dataclass(frozen=True)
class Batch:
    """Token ids of several rows, padded with PAD on the right.

    Language models have no source. A window of a text is a row of `target`; it starts with the token before
    it instead of BOS.

    Attributes:
        target: (B, T+1), BOS y1 … yn EOS.
        target_lengths: (B,); target[b, 1 : 1 + target_lengths[b]] are the labels.
        rows: (B,), the rows of the prepared dataset, or the position of each window in the text.
        source: (B, S), x1 … xn EOS; or (B, S, channels), frames of numbers.
        source_lengths: (B,).
        continues: row b continues row b of the previous batch, so a recurrent state is kept.
        tokens: number of labels; counted when the batch is made, so that no one has to wait for a GPU.
        source_tokens: number of source tokens.
    """

    target: Tensor
    target_lengths: Tensor
    rows: Tensor
    source: Tensor | None = None
    source_lengths: Tensor | None = None
    continues: bool = False
    tokens: int = -1
    source_tokens: int = -1

    def __post_init__(self) -> None:
        self._check()
        if self.tokens < 0:
            object.__setattr__(self, "tokens", int(self.target_lengths.sum()))
        if self.source_tokens < 0:
            count = 0 if self.source_lengths is None else int(self.source_lengths.sum())
            object.__setattr__(self, "source_tokens", count)

    def _check(self) -> None:
        for name, axes in _AXES.items():
            value: Any = getattr(self, name)
            if value is None and name.startswith("source"):
                continue
            if name == "source" and _holds_frames(value) and len(value) == len(self.target):
                continue
            if not _holds_integers(value) or value.ndim != axes or len(value) != len(self.target):
                shape = "(batch, time)" if axes == 2 else "(batch,)"
                raise ShapeError(
                    f"{name} of a Batch must be a tensor of integers of shape {shape}, got {quoted(value)}"
                )
        if (self.source is None) != (self.source_lengths is None):
            raise OptionError("a Batch has source and source_lengths or neither; give both")
        for name in ("tokens", "source_tokens"):
            integer(name, getattr(self, name), -1)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Move the batch to a device."""
        return self._map(lambda x: x.to(device, non_blocking=non_blocking))

    def pin(self) -> Batch:
        """Copy the batch to pinned memory, from which a GPU copies asynchronously."""
        return self._map(lambda x: x.pin_memory())

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        tensors = {name: getattr(self, name) for name in _AXES}
        return replace(self, **{name: function(x) for name, x in tensors.items() if x is not None})

    def __len__(self) -> int:
        return len(self.rows)


def _holds_frames(value: Any) -> TypeGuard[Tensor]:
    """True for numbers (batch, time, channels)."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3


def _holds_integers(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
