"""The weights of a model for the CUDA engine: in one dtype, linear layers of the same input fused, scales
multiplied in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.position import Learned
from regard.data.tokenizer import BOS, PAD
from regard.decoding.engine.cuda.buffers import MULTIPLE, bucket
from regard.decoding.engine.layout import LayerShape
from regard.layers.feedforward import ACTIVATIONS

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHUNK = 64  # the vocabulary is padded to a multiple of it
Linear = tuple[Tensor, Tensor | None]  # weight, bias


class Layer(NamedTuple):
    """The weights of one layer; those of the same input are fused."""

    qkv: Linear
    out: Linear
    cross: Linear | None
    cross_out: Linear | None
    up: Linear
    down: Linear
    norms: list[nn.Module]


class Weights:
    """The weights of an encoder or decoder; `layer` computes one layer, with attention as a function."""

    def __init__(self, part: Any, layer_shape: LayerShape, dtype: torch.dtype) -> None:
        ready = lambda *maps, first=1.0: fused(maps, dtype, first)  # noqa: E731
        scale = layer_shape.width**-0.5  # of the energies, multiplied into the queries
        norm = lambda module: copy.deepcopy(module).to(dtype).requires_grad_(False)  # noqa: E731
        self.layers = [
            Layer(
                ready(x.attention.Wq, x.attention.Wk, x.attention.Wv, first=scale), ready(x.attention.Wo),
                *((None, None) if x.cross is None else (ready(x.cross.Wq, first=scale), ready(x.cross.Wo))),
                ready(x.feed.W1), ready(x.feed.W2),
                [norm(around.norm)
                 for around in (x.around_attention, x.around_cross, x.around_feed) if around],
            )
            for x in part.layers
        ]  # fmt: skip
        self.norm, self.position, self.layer_shape = norm(part.norm), part.position, layer_shape
        self._positions = self.layers[0].qkv[0].new_zeros(0, layer_shape.dim)

    def around(self, norm: nn.Module, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + sublayer(norm(x)) if self.layer_shape.place == "pre" else norm(x + sublayer(x))

    def layer(
        self,
        layer: Layer,
        x: Tensor,
        own: Callable[[Tensor], Tensor],
        cross: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Compute a layer for x (…, dim). `own` maps fused queries, keys and values to heads, `cross` maps
        queries.
        """
        norms = iter(layer.norms)
        x = self.around(next(norms), x, lambda x: F.linear(own(F.linear(x, *layer.qkv)), *layer.out))
        if layer.cross is not None and layer.cross_out is not None and cross is not None:
            query, out, attend = layer.cross, layer.cross_out, cross
            x = self.around(next(norms), x, lambda x: F.linear(attend(F.linear(x, *query)), *out))
        return self.around(
            next(norms), x, lambda x: F.linear(self._active(F.linear(x, *layer.up)), *layer.down)
        )

    def _active(self, h: Tensor) -> Tensor:
        if self.layer_shape.activation != "swiglu":
            return ACTIVATIONS[self.layer_shape.activation](h)
        a, b = h.chunk(2, -1)
        return F.silu(a) * b

    def positions(self, length: int) -> Tensor:
        """Return the position vectors (length, dim); zeros beyond a learned table, where nothing is read."""
        if len(self._positions) < length:
            table = self._positions.new_zeros(1, bucket(length), self.layer_shape.dim)
            known = (
                min(table.shape[1], self.position.maxlen)
                if isinstance(self.position, Learned)
                else table.shape[1]
            )
            table[:, :known] = self.position(table[:, :known])
            self._positions = table[0]
        return self._positions[:length]


def fused(maps: tuple[nn.Linear, ...], dtype: torch.dtype, first: float = 1.0) -> Linear:
    """Fuse linear layers of the same input; the output of the first is multiplied by `first`."""
    scales = [first, *[1.0] * (len(maps) - 1)]
    bias = (
        None
        if maps[0].bias is None
        else torch.cat([m.bias.detach() * s for m, s in zip(maps, scales, strict=True)]).to(dtype)
    )
    return torch.cat([m.weight.detach() * s for m, s in zip(maps, scales, strict=True)]).to(dtype), bias


class Readout:
    """The projection to the vocabulary, in float32 or better.

    The bias is a column of the matrix, multiplied by features of 1, so one product computes all. Padding
    tokens, PAD and BOS have a score of −inf.
    """

    def __init__(self, projection: nn.Linear, dtype: torch.dtype) -> None:
        weight, vocab = projection.weight.detach(), projection.out_features
        self.weight = F.pad(weight, (0, MULTIPLE, 0, -vocab % CHUNK)).to(dtype)
        column = self.weight[:, projection.in_features]
        if projection.bias is not None:
            column[:vocab] = projection.bias.detach()
        column[vocab:] = column[PAD] = column[BOS] = -torch.inf

    def __call__(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, MULTIPLE), value=1.0)
        if x.is_cuda and x.dtype == torch.bfloat16:
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        return F.linear(x, self.weight).to(exact(x.dtype))


def exact(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of energies and probabilities."""
    return torch.float64 if dtype == torch.float64 else torch.float32
