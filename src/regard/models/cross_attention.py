"""Cross-attention of recurrent decoders: y^a(t) from the query y^d(t) and all encoder states y^e."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import watching
from regard.attention.attend import attend
from regard.attention.energy import Additive, Bilinear, Cosine, Dot, Energy, ProjectedAdditive, ScaledDot
from regard.attention.normalize import Normalizer, Softmax
from regard.errors import ShapeError
from regard.models.attention_options import ENERGIES
from regard.models.memory import Memory
from regard.registry import Registry

DOT, SOFTMAX = Dot(), Softmax()


@dataclass(frozen=True)
class CrossAttentionOptions:
    """What a recipe says about the attention of a recurrent decoder, beside its name."""

    width: int | None = None  # of queries, keys and values of a projected attention; None: that of the query
    energy: str = "dot"  # of a projected attention; otherwise the name of the attention is its energy
    normalize: Normalizer = SOFTMAX


# By name in a recipe: (query width, memory width, options) → module or None.
CROSS_ATTENTIONS: Registry[Callable[[int, int, CrossAttentionOptions], Any]] = Registry("attention")
CROSS_ATTENTIONS.add("none")(lambda query_width, memory_width, options: None)


class StateCrossAttention(nn.Module):
    """Attention of decoder states to encoder states without projections: y^a(t) = [y^e] n(e(y^d(t), [y^e])).

    With the energy `dot` and n = softmax this is the simple attention of *Deep Learning IX*; without a
    normalizer (`Raw`) it is that lecture's first form, y^a(t) = [y^e] [y^e]ᵀ y^d(t).
    """

    def __init__(
        self, query_width: int, memory_width: int, energy: Energy, normalize: Normalizer = SOFTMAX
    ) -> None:
        super().__init__()
        if query_width != memory_width and not isinstance(energy, (Bilinear, Additive)):
            raise ShapeError(
                f"{type(energy).__name__} attention compares decoder states of width {query_width} with "
                f"encoder states of width {memory_width}; make the widths equal, or use attention: "
                "projected, which maps both"
            )
        self.energy, self.normalize, self.width = energy, normalize, memory_width

    def forward(self, query: Tensor, memory: Memory) -> Tensor:
        return _attend(query, memory.states, memory.states, memory, self.energy, self.normalize)


STATE_ENERGIES: dict[str, Callable[[int, int], Energy]] = {  # of (query width, memory width)
    "dot": lambda query, memory: Dot(),
    "scaled-dot": lambda query, memory: ScaledDot(),
    "cosine": lambda query, memory: Cosine(math.sqrt(query)),
    "bilinear": Bilinear,  # Luong et al. 2015, "general"
    "additive": Additive,
}
for _name, _energy in STATE_ENERGIES.items():
    CROSS_ATTENTIONS.add(_name)(
        lambda query, memory, options, make=_energy: StateCrossAttention(
            query, memory, make(query, memory), options.normalize
        )
    )


@CROSS_ATTENTIONS.add("projected")
class ProjectedCrossAttention(nn.Module):
    """a(t) = (W^K [y^e])ᵀ (W^Q y^d(t)), y^a(t) = (W^V [y^e]) softmax(a(t)): query, key and value projections.

    *Deep Learning IX* calls it parameterised attention. `options` can change the energy and the normalizer.
    """

    def __init__(
        self,
        query_width: int,
        memory_width: int,
        options: CrossAttentionOptions = CrossAttentionOptions(),  # noqa: B008 frozen
    ) -> None:
        super().__init__()
        width = options.width or query_width
        self.Wq = nn.Linear(query_width, width, bias=False)
        self.Wk = nn.Linear(memory_width, width, bias=False)
        self.Wv = nn.Linear(memory_width, width, bias=False)
        self.energy, self.normalize = ENERGIES[options.energy](width, 1), options.normalize
        self.width = width

    def forward(self, query: Tensor, memory: Memory) -> Tensor:
        key, value = self.Wk(memory.states), self.Wv(memory.states)
        return _attend(self.Wq(query), key, value, memory, self.energy, self.normalize)


class AdditiveCrossAttention(nn.Module):
    """a = vᵀ tanh(W q + U h) (Bahdanau et al. 2015).

    U h does not depend on the step: `project` computes it once.
    """

    def __init__(
        self, query_width: int, memory_width: int, width: int, normalize: Normalizer = SOFTMAX
    ) -> None:
        super().__init__()
        self.energy, self.normalize = Additive(query_width, memory_width, width), normalize
        self.width = memory_width

    def project(self, memory: Memory) -> Tensor:
        return self.energy.Wk(memory.states)

    def forward(self, query: Tensor, memory: Memory, projected: Tensor) -> Tensor:
        energy = ProjectedAdditive(self.energy)
        return _attend(query, projected, memory.states, memory, energy, self.normalize)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, memory: Memory, energy: Energy, normalize: Normalizer
) -> Tensor:
    """Attention with one head: query (batch, T, ·), key and value (batch, S, ·) → (batch, T, ·)."""
    if not torch.is_autocast_enabled(query.device.type if query.device.type != "meta" else "cpu"):
        query, key, value = (x.to(value.dtype) for x in (query, key, value))
    start = 0 if query.shape[1] > 1 else watching.UNKNOWN  # a step does not know how many came before
    with watching.label_calls("cross", start) if watching.is_watching() else nullcontext():
        q, k, v = query[:, None], key[:, None], value[:, None]  # (batch, 1 head, T or S, ·)
        return attend(q, k, v, energy=energy, mask=memory.mask, normalize=normalize)[:, 0]
