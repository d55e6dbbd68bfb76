"""The Transformer's layer: self-attention, attention to a memory where there is one, feed-forward (Vaswani et al. 2017, 3.1)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from regard.attention.call import MaskLike
from regard.layers.cache import Cache
from regard.layers.feedforward import FeedForward
from regard.layers.multihead import MultiHead, SlicedMultiHead
from regard.layers.residual import Residual
from regard.models.memory import Memory

Heads = MultiHead | SlicedMultiHead


class TransformerLayer(nn.Module):
    """Two sublayers, or three with `cross`; `around` makes what stands around each: residual, normalisation, dropout."""

    def __init__(
        self, attention: Heads, feed: FeedForward, around: Callable[[], Residual], cross: Heads | None = None
    ) -> None:
        super().__init__()
        self.dim = attention.dim
        self.attention, self.around_attention = attention, around()
        self.cross, self.around_cross = cross, None if cross is None else around()
        self.feed, self.around_feed = feed, around()

    def forward(
        self,
        x: Tensor,
        memory: Memory | None = None,
        *,
        mask: MaskLike | None = None,
        caches: tuple[Cache, Cache] | None = None,
    ) -> Tensor:
        own, other = (None, None) if caches is None else caches
        x = self.around_attention(x, lambda x: self.attention(x, mask=mask, cache=own))
        if self.cross is not None and self.around_cross is not None and memory is not None:
            cross = self.cross
            x = self.around_cross(x, lambda x: cross(x, memory.states, mask=memory.finite_mask, cache=other))
        return self.around_feed(x, self.feed)


class WithChannel(nn.Module):
    """The position as one more channel, concat(x, t), mapped back to the model's width."""

    def __init__(self, channel: nn.Module, dim: int) -> None:
        super().__init__()
        self.channel, self.fit = channel, nn.Linear(dim + 1, dim)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return self.fit(self.channel(x, offset))


class Normed(nn.Module):
    """Word and position added up and then normalised, as BERT reads them (Devlin et al. 2019)."""

    def __init__(self, position: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.position, self.norm = position, norm

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return self.norm(self.position(x, offset))


class NoPosition(nn.Module):
    """Order comes from elsewhere, or not at all."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        return x
