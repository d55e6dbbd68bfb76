"""The attention options of a recipe: energies, normalizers, positions and masks by name.

mask: {kind: and, of: [causal, {kind: window, left: 64}]}
energy: cosine
position: alibi
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from regard.attention.bias import ALiBi, Bias, RelativeBuckets, RelativeVectors
from regard.attention.energy import Additive, Bilinear, Cosine, Dot, Energy, ScaledDot
from regard.attention.mask import Mask
from regard.attention.normalize import Entmax, Normalizer, Raw, Sigmoid, Softmax, Sparsemax
from regard.attention.position import Channel, Learned, Rotary, Sinusoidal
from regard.attention.position_masks import Causal, Diagonal, Dilated, Prefix, Window
from regard.layers.residual import make_norm
from regard.models.options import NameOf, PartOptions, Size
from regard.registry import Registry

# Functions of (head_dim, heads) that make an energy.
ENERGIES: Registry[Callable[[int, int], Energy]] = Registry("energy")
ENERGIES.add("dot")(lambda head_dim, heads: Dot())
ENERGIES.add("scaled-dot")(lambda head_dim, heads: ScaledDot())
ENERGIES.add("cosine")(lambda head_dim, heads: Cosine(math.sqrt(head_dim)))
ENERGIES.add("additive")(lambda head_dim, heads: Additive(head_dim, heads=heads))
ENERGIES.add("bilinear")(lambda head_dim, heads: Bilinear(head_dim, heads=heads))
EnergyName = Annotated[str, NameOf(ENERGIES)]

NORMALIZERS: Registry[Callable[[], Normalizer]] = Registry("normalizer")
NORMALIZERS.add("softmax")(Softmax)
NORMALIZERS.add("sparsemax")(Sparsemax)
NORMALIZERS.add("entmax")(Entmax)
NORMALIZERS.add("sigmoid")(Sigmoid)
NORMALIZERS.add("none")(Raw)
NormalizerName = Annotated[str, NameOf(NORMALIZERS)]


class Position:
    """How a Transformer gets positions: added to its inputs, as a bias, or by rotating queries and keys.

    Subclasses override what they use. The base class itself is `none`: the model gets no positions.
    """

    def inputs(self, dim: int, max_positions: int, eps: float | None = None) -> nn.Module:
        """Module applied to the embeddings, (batch, T, dim), offset → the same shape."""
        return NoPosition()

    def bias(self, heads: int, head_dim: int, causal: bool) -> Bias | None:
        """Bias added to the energies of every layer."""
        return None

    def rotary(self, head_dim: int) -> Rotary | None:
        """Rotation of queries and keys."""
        return None


POSITIONS: Registry[Position] = Registry("position")
PositionName = Annotated[str, NameOf(POSITIONS)]


class _InputPosition(Position):
    """A position that is applied to the embeddings."""

    def __init__(self, make: Callable[[int, int, float | None], nn.Module]) -> None:
        self._make = make

    def inputs(self, dim: int, max_positions: int, eps: float | None = None) -> nn.Module:
        return self._make(dim, max_positions, eps)


class _BiasPosition(Position):
    """A position that biases the energies."""

    def __init__(self, make: Callable[[int, int, bool], Bias]) -> None:
        self._make = make

    def bias(self, heads: int, head_dim: int, causal: bool) -> Bias:
        return self._make(heads, head_dim, causal)


class _RotaryPosition(Position):
    """A position that rotates queries and keys."""

    def rotary(self, head_dim: int) -> Rotary:
        return Rotary(head_dim)


class NoPosition(nn.Module):
    """Return the embeddings unchanged."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return x


class ChannelPosition(nn.Module):
    """The position as one more channel, concat(x, t), mapped back to the model's width."""

    def __init__(self, channel: nn.Module, dim: int) -> None:
        super().__init__()
        self.channel, self.fit = channel, nn.Linear(dim + 1, dim)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return self.fit(self.channel(x, offset))


class NormalizedPosition(nn.Module):
    """Embedding plus position, then layer normalization, as in BERT (Devlin et al. 2019)."""

    def __init__(self, position: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.position, self.norm = position, norm

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return self.norm(self.position(x, offset))


def _normalized(dim: int, max_positions: int, eps: float | None) -> nn.Module:
    return NormalizedPosition(Learned(max_positions, dim), make_norm(dim, "post", "layer", eps))


POSITIONS.add("sinusoidal")(_InputPosition(lambda dim, max_positions, eps: Sinusoidal(dim)))
POSITIONS.add("learned")(_InputPosition(lambda dim, max_positions, eps: Learned(max_positions, dim)))
POSITIONS.add("learned-norm")(_InputPosition(_normalized))
POSITIONS.add("channel")(
    _InputPosition(lambda dim, max_positions, eps: ChannelPosition(Channel(scale=0.01), dim))
)
POSITIONS.add("rotary")(_RotaryPosition())
POSITIONS.add("alibi")(_BiasPosition(lambda heads, head_dim, causal: ALiBi(heads)))
POSITIONS.add("relative-buckets")(
    _BiasPosition(lambda heads, head_dim, causal: RelativeBuckets(heads, causal=causal))
)
POSITIONS.add("relative-vectors")(_BiasPosition(lambda heads, head_dim, causal: RelativeVectors(head_dim)))
POSITIONS.add("none")(Position())


MASKS: Registry[type[MaskOptions]] = Registry("mask")


class MaskOptions(PartOptions):
    """Base class of masks in a recipe; `build` makes the mask."""

    registry: ClassVar = MASKS
    shorthand: ClassVar = True  # `mask: diagonal`

    def build(self) -> Mask:
        raise NotImplementedError


@MASKS.add("causal")
class CausalMask(MaskOptions):
    """Only the current token and those before it."""

    kind: Literal["causal"] = "causal"

    def build(self) -> Mask:
        return Causal()


@MASKS.add("window")
class WindowMask(MaskOptions):
    """Neighbours: position t sees t − left … t + right; null: no limit on that side."""

    kind: Literal["window"] = "window"
    left: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="how many tokens to the left are seen; null: all"
    )
    right: Annotated[int, Field(ge=0)] | None = Field(
        default=0, description="how many tokens to the right are seen; null: all"
    )

    def build(self) -> Mask:
        return Window(self.left, self.right)


@MASKS.add("centered")
class CenteredMask(MaskOptions):
    """Schmidt-Thieme's restricted attention: distance at most width/2."""

    kind: Literal["centered"] = "centered"
    width: Annotated[int, Field(ge=0)] = Field(description="Schmidt-Thieme's K: K/2 tokens on each side")

    def build(self) -> Mask:
        return Window.centered(self.width)


@MASKS.add("dilated")
class DilatedMask(MaskOptions):
    """Every `step`-th token, counted from the current one."""

    kind: Literal["dilated"] = "dilated"
    step: Size = Field(description="a token is seen when its distance is divisible by this")

    def build(self) -> Mask:
        return Dilated(self.step)


@MASKS.add("diagonal")
class DiagonalMask(MaskOptions):
    """Only the token itself; inside `not`, all but the token itself."""

    kind: Literal["diagonal"] = "diagonal"

    def build(self) -> Mask:
        return Diagonal()


@MASKS.add("prefix")
class PrefixMask(MaskOptions):
    """The first `length` tokens, visible from every position."""

    kind: Literal["prefix"] = "prefix"
    length: Annotated[int, Field(ge=0)] = Field(description="number of tokens in the prefix")

    def build(self) -> Mask:
        return Prefix(self.length)


@MASKS.add("and")
class AndMask(MaskOptions):
    """Allowed by all of several masks."""

    kind: Literal["and"] = "and"
    of: Annotated[list[MaskOptions], Field(min_length=1)] = Field(description="the masks to combine")

    def build(self) -> Mask:
        return reduce(lambda one, other: one & other, (mask.build() for mask in self.of))


@MASKS.add("or")
class OrMask(MaskOptions):
    """Allowed by any of several masks."""

    kind: Literal["or"] = "or"
    of: Annotated[list[MaskOptions], Field(min_length=1)] = Field(description="the masks to combine")

    def build(self) -> Mask:
        return reduce(lambda one, other: one | other, (mask.build() for mask in self.of))


@MASKS.add("not")
class NotMask(MaskOptions):
    """Allowed where another mask forbids."""

    kind: Literal["not"] = "not"
    of: MaskOptions = Field(description="the mask to invert")

    def build(self) -> Mask:
        return ~self.of.build()
