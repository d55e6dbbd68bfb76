"""Cross-attention of recurrent decoders: y^a(t) from the query y^d(t) and the encoder states [y^e(1) …
y^e(T^e)].
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import watching
from regard.attention.attend import attend
from regard.attention.energy import Additive, Bilinear, Dot, Energy, ProjectedAdditive
from regard.errors import ShapeError
from regard.models.memory import Memory
from regard.registry import Registry

DOT = Dot()
# By name in a recipe: (query width, memory width, width of the projections or None) → module or None.
CROSS_ATTENTIONS: Registry[Callable[[int, int, int | None], Any]] = Registry("attention")
CROSS_ATTENTIONS.add("none")(lambda query_width, memory_width, width: None)


class DotCrossAttention(nn.Module):
    """a(t) = [y^e]ᵀ y^d(t), y^a(t) = [y^e] softmax(a(t)): a dot product (Luong et al. 2015, "dot").

    *Deep Learning IX* calls it simple attention. It has no parameters, so both widths must be equal.
    """

    def __init__(self, query_width: int, memory_width: int) -> None:
        super().__init__()
        if query_width != memory_width:
            raise ShapeError(
                f"dot-product attention multiplies decoder states of width {query_width} with encoder "
                f"states of width {memory_width}; make the widths equal, or use attention: projected, "
                "which maps both"
            )
        self.width = memory_width

    def forward(self, query: Tensor, memory: Memory) -> Tensor:
        return _attend(query, memory.states, memory.states, memory, DOT)


@CROSS_ATTENTIONS.add("projected")
class ProjectedCrossAttention(nn.Module):
    """a(t) = (W^K [y^e])ᵀ (W^Q y^d(t)), y^a(t) = (W^V [y^e]) softmax(a(t)): query, key and value projections.

    *Deep Learning IX* calls it parameterised attention.
    """

    def __init__(self, query_width: int, memory_width: int, width: int | None = None) -> None:
        super().__init__()
        width = width or query_width
        self.Wq = nn.Linear(query_width, width, bias=False)
        self.Wk = nn.Linear(memory_width, width, bias=False)
        self.Wv = nn.Linear(memory_width, width, bias=False)
        self.width = width

    def forward(self, query: Tensor, memory: Memory) -> Tensor:
        return _attend(self.Wq(query), self.Wk(memory.states), self.Wv(memory.states), memory, DOT)


class BilinearCrossAttention(nn.Module):
    """a(t) = [y^e]ᵀ Wᵀ y^d(t) (Luong et al. 2015, "general"); the values are the encoder's states."""

    def __init__(self, query_width: int, memory_width: int) -> None:
        super().__init__()
        self.energy = Bilinear(query_width, memory_width)
        self.width = memory_width

    def forward(self, query: Tensor, memory: Memory) -> Tensor:
        return _attend(query, memory.states, memory.states, memory, self.energy)


class AdditiveCrossAttention(nn.Module):
    """a = vᵀ tanh(W q + U h) (Bahdanau et al. 2015). U h does not depend on the step: `project` computes it
    once.
    """

    def __init__(self, query_width: int, memory_width: int, width: int) -> None:
        super().__init__()
        self.energy = Additive(query_width, memory_width, width)
        self.width = memory_width

    def project(self, memory: Memory) -> Tensor:
        return self.energy.Wk(memory.states)

    def forward(self, query: Tensor, memory: Memory, projected: Tensor) -> Tensor:
        return _attend(query, projected, memory.states, memory, ProjectedAdditive(self.energy))


CROSS_ATTENTIONS.add("dot")(lambda query, memory, width: DotCrossAttention(query, memory))
CROSS_ATTENTIONS.add("bilinear")(lambda query, memory, width: BilinearCrossAttention(query, memory))


def _attend(query: Tensor, key: Tensor, value: Tensor, memory: Memory, energy: Energy) -> Tensor:
    """Attention with one head: query (batch, T, ·), key and value (batch, S, ·) → (batch, T, ·)."""
    if not torch.is_autocast_enabled(query.device.type if query.device.type != "meta" else "cpu"):
        query, key, value = (x.to(value.dtype) for x in (query, key, value))
    start = 0 if query.shape[1] > 1 else watching.UNKNOWN  # a step does not know how many came before
    with watching.label_calls("cross", start) if watching.is_watching() else nullcontext():
        return attend(query[:, None], key[:, None], value[:, None], energy=energy, mask=memory.mask)[:, 0]
