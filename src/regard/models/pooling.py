"""Poolings: the states of a text to one vector, Memory (batch, S, width) → (batch, pooling.width).

Padding has no influence, and an empty text gives zeros. Each kind has its options (the `pooling:` block of a
recipe) and its module.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.call import SCALED_DOT, SOFTMAX
from regard.attention.energy import Energy
from regard.attention.normalize import Normalizer
from regard.layers.multihead import MultiHead
from regard.layers.recurrent import RecurrentStack
from regard.models.attention_options import ENERGIES, NORMALIZERS, EnergyName, NormalizerName
from regard.models.encoder import Cell
from regard.models.memory import Memory, token_mask
from regard.models.options import POOLINGS, PoolingOptions, Size


@POOLINGS.add("mean")
class MeanPoolingOptions(PoolingOptions):
    """The mean of the states."""

    kind: Literal["mean"] = "mean"

    def build(self, width: int) -> MeanPooling:
        return MeanPooling(width)


class MeanPooling(nn.Module):
    """The mean of the states."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, memory: Memory) -> Tensor:
        return memory.mean()


@POOLINGS.add("sum")
class SumPoolingOptions(PoolingOptions):
    """The sum of the states."""

    kind: Literal["sum"] = "sum"

    def build(self, width: int) -> SumPooling:
        return SumPooling(width)


class SumPooling(nn.Module):
    """The sum of the states; longer texts give longer vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, memory: Memory) -> Tensor:
        x = memory.states
        return (x if memory.lengths is None else x * token_mask(x, memory.lengths)).sum(1)


@POOLINGS.add("max")
class MaxPoolingOptions(PoolingOptions):
    """The largest value of each feature over time."""

    kind: Literal["max"] = "max"

    def build(self, width: int) -> MaxPooling:
        return MaxPooling(width)


class MaxPooling(nn.Module):
    """The largest value of each feature over time (Collobert et al. 2011)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, memory: Memory) -> Tensor:
        x = memory.states
        if not x.shape[1]:
            return x.sum(1)  # no tokens: zeros
        if memory.lengths is None:
            return x.amax(1)
        padding = ~token_mask(x, memory.lengths).bool()
        return x.masked_fill(padding, -torch.inf).amax(1).masked_fill((memory.lengths == 0)[:, None], 0.0)


@POOLINGS.add("last")
class LastPoolingOptions(PoolingOptions):
    """The state at the last token; of a recurrence its last state."""

    kind: Literal["last"] = "last"

    def build(self, width: int) -> LastPooling:
        return LastPooling(width)


class LastPooling(nn.Module):
    """The state at the last token; of a recurrence its last state, with both directions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, memory: Memory) -> Tensor:
        last = memory.final()
        return last if memory.lengths is None else last.masked_fill((memory.lengths == 0)[:, None], 0.0)


@POOLINGS.add("recurrent")
class RecurrentPoolingOptions(PoolingOptions):
    """The last state of a further recurrence over the states."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Cell = Field(default="gru", description="the recurrent cell")
    width: Size | None = Field(
        default=None, description="width of its state; null: that of the states it reads"
    )

    def build(self, width: int) -> RecurrentPooling:
        return RecurrentPooling(RecurrentStack(width, self.width or width, cell=self.cell))


class RecurrentPooling(nn.Module):
    """The last state of a recurrence over the states; depends on their order."""

    def __init__(self, stack: RecurrentStack) -> None:
        super().__init__()
        self.stack, self.width = stack, stack.width

    def forward(self, memory: Memory) -> Tensor:
        states, last = self.stack(memory.states, lengths=memory.lengths)
        return Memory(states, memory.lengths, last).final()


@POOLINGS.add("attention")
class AttentionPoolingOptions(PoolingOptions):
    """Learned queries attend to the states."""

    kind: Literal["attention"] = "attention"
    queries: Size = Field(default=1, description="number of queries; their results are concatenated")
    heads: Size = Field(default=1, description="heads of each query; must divide the width of the states")
    energy: EnergyName = Field(default="scaled-dot", description="energy of a query and a state")
    normalize: NormalizerName = Field(default="softmax", description="normalizer of the energies")

    def check(self, width: int, place: str) -> Iterator[str]:
        if width % self.heads:
            yield (
                f"{place}.heads is {self.heads}, which does not divide the width {width} of the states; "
                "take another number"
            )

    def build(self, width: int) -> AttentionPooling:
        return AttentionPooling(
            width,
            queries=self.queries,
            heads=self.heads,
            energy=ENERGIES[self.energy](width // self.heads, self.heads),
            normalize=NORMALIZERS[self.normalize](),
        )


class AttentionPooling(nn.Module):
    """The weighted mean of the states for a learned query; those of several queries are concatenated.

    With an additive energy this is the attention of Yang et al. 2016. `regard.watch` records the weights, one
    row per query.
    """

    def __init__(
        self,
        width: int,
        *,
        queries: int = 1,
        heads: int = 1,
        energy: Energy | None = None,
        normalize: Normalizer | None = None,
    ) -> None:
        super().__init__()
        self.width = queries * width
        query = torch.empty(queries, width).normal_()
        # Arithmetic on meta tensors, which loading starts with, imports sympy and torch._dynamo: 2 s.
        self.query = nn.Parameter(query if query.is_meta else query / math.sqrt(width))
        self.attention = MultiHead(
            width,
            heads,
            project=False,
            energy=SCALED_DOT if energy is None else energy,
            normalize=SOFTMAX if normalize is None else normalize,
        )

    def forward(self, memory: Memory) -> Tensor:
        query = self.query.expand(len(memory.states), -1, -1)  # (batch, queries, width)
        return self.attention(query, memory.states, mask=memory.mask).flatten(1)


@POOLINGS.add("concat")
class ConcatPoolingOptions(PoolingOptions):
    """Several poolings, concatenated."""

    kind: Literal["concat"] = "concat"
    of: Annotated[list[PoolingOptions], Field(min_length=1)] = Field(description="the poolings")

    def check(self, width: int, place: str) -> Iterator[str]:
        for i, pooling in enumerate(self.of):
            yield from pooling.check(width, f"{place}.of[{i}]")

    def build(self, width: int) -> ConcatPooling:
        return ConcatPooling([pooling.build(width) for pooling in self.of])


class ConcatPooling(nn.Module):
    """Several poolings of the same states, concatenated."""

    def __init__(self, poolings: Sequence[Any]) -> None:
        super().__init__()
        self.poolings = nn.ModuleList(poolings)
        self.width = sum(pooling.width for pooling in poolings)

    def forward(self, memory: Memory) -> Tensor:
        return torch.cat([pooling(memory) for pooling in self.poolings], -1)
