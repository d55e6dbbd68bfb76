"""A model's weights as the engine uses them: copied into one type, maps of one input joined, scales multiplied in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.position import Learned
from regard.data.tokenizer import BOS, PAD
from regard.decoding.engine.cuda.buffers import FEWEST, bucket
from regard.decoding.engine.layout import Shape
from regard.layers.feedforward import ACTIVATIONS

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHUNK = 64  # words are a multiple of it
Map = tuple[Tensor, Tensor | None]


class Layer(NamedTuple):
    """One layer's maps, those of one input joined."""

    qkv: Map
    out: Map
    cross: Map | None
    cross_out: Map | None
    up: Map
    down: Map
    norms: list[nn.Module]


class Weights:
    """A copy of a stack of layers in one type, its maps joined; computes a layer given how attention is done."""

    def __init__(self, part: Any, made: Shape, dtype: torch.dtype) -> None:
        ready = lambda *maps, first=1.0: joined(maps, dtype, first)  # noqa: E731
        scale = made.width**-0.5  # of the energies, multiplied into the queries
        norm = lambda module: copy.deepcopy(module).to(dtype).requires_grad_(False)  # noqa: E731
        self.layers = [
            Layer(
                ready(x.attention.Wq, x.attention.Wk, x.attention.Wv, first=scale), ready(x.attention.Wo),
                *((None, None) if x.cross is None else (ready(x.cross.Wq, first=scale), ready(x.cross.Wo))),
                ready(x.feed.W1), ready(x.feed.W2),
                [norm(around.norm) for around in (x.around_attention, x.around_cross, x.around_feed) if around is not None],
            )
            for x in part.layers
        ]  # fmt: skip
        self.norm, self.position, self.made = norm(part.norm), part.position, made
        self._places = self.layers[0].qkv[0].new_zeros(0, made.dim)

    def around(self, norm: nn.Module, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(norm(x)) if self.made.place == "pre" else norm(x + sublayer(x))

    def layer(
        self,
        layer: Layer,
        x: Tensor,
        own: Callable[[Tensor], Tensor],
        cross: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """x (…, dim); `own` takes queries, keys and values side by side, `cross` queries; both give the heads side by side."""
        norms = iter(layer.norms)
        x = self.around(next(norms), x, lambda x: F.linear(own(F.linear(x, *layer.qkv)), *layer.out))
        if layer.cross is not None and layer.cross_out is not None and cross is not None:
            to, back, look = layer.cross, layer.cross_out, cross
            x = self.around(next(norms), x, lambda x: F.linear(look(F.linear(x, *to)), *back))
        return self.around(
            next(norms), x, lambda x: F.linear(self._active(F.linear(x, *layer.up)), *layer.down)
        )

    def _active(self, h: Tensor) -> Tensor:
        if self.made.activation != "swiglu":
            return ACTIVATIONS[self.made.activation](h)
        a, b = h.chunk(2, -1)
        return F.silu(a) * b

    def places(self, length: int) -> Tensor:
        """What is added to the first words, (length, dim); zeros behind the end of a learned table, where nobody looks."""
        if len(self._places) < length:
            found = self._places.new_zeros(1, bucket(length), self.made.dim)
            known = (
                min(found.shape[1], self.position.maxlen)
                if isinstance(self.position, Learned)
                else found.shape[1]
            )
            found[:, :known] = self.position(found[:, :known])
            self._places = found[0]
        return self._places[:length]


def joined(maps: tuple[nn.Linear, ...], dtype: torch.dtype, first: float = 1.0) -> Map:
    """Maps of one input as one; what the first one gives is multiplied."""
    scales = [first, *[1.0] * (len(maps) - 1)]
    bias = (
        None
        if maps[0].bias is None
        else torch.cat([m.bias.detach() * s for m, s in zip(maps, scales, strict=True)]).to(dtype)
    )
    return torch.cat([m.weight.detach() * s for m, s in zip(maps, scales, strict=True)]).to(dtype), bias


class Readout:
    """The last map: features to scores of words, in float32 or better. Its bias is a column of the matrix, met by features that are
    1, so that one product does it all; words that fill it up to whole chunks cannot be written, and nor can PAD and BOS.
    """

    def __init__(self, words: nn.Linear, dtype: torch.dtype) -> None:
        weight, vocab = words.weight.detach(), words.out_features
        self.weight = F.pad(weight, (0, FEWEST, 0, -vocab % CHUNK)).to(dtype)
        column = self.weight[:, words.in_features]
        if words.bias is not None:
            column[:vocab] = words.bias.detach()
        column[vocab:] = column[PAD] = column[BOS] = -torch.inf

    def __call__(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, FEWEST), value=1.0)
        if x.is_cuda and x.dtype == torch.bfloat16:
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        return F.linear(x, self.weight).to(exact(x.dtype))


def exact(dtype: torch.dtype) -> torch.dtype:
    """What energies and probabilities are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
