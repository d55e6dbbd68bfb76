"""The weights of a model, packed for the CUDA engine.

All weights have one dtype, linear layers of the same input are fused, and the scale of the energies is
multiplied into the query weights.
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
from regard.layers.fused_residual import Sublayer, can_fuse, run_sublayers
from regard.layers.residual import Residual

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHUNK = 64  # the vocabulary is padded to a multiple of this
Linear = tuple[Tensor, Tensor | None]  # weight, bias


class Layer(NamedTuple):
    """The weights of one Transformer layer; linear layers of the same input are fused."""

    qkv: Linear
    out: Linear
    cross: Linear | None  # the queries of cross-attention
    cross_out: Linear | None
    up: Linear
    down: Linear
    residuals: list[Residual]  # around self-attention, cross-attention (if any), feed-forward


class PackedWeights:
    """The weights of an encoder or decoder; the caller passes the attention of each layer.

    With `fused`, residual sums are computed together with their norms, and ReLU with its matmul.
    """

    def __init__(self, stack: Any, layer_shape: LayerShape, dtype: torch.dtype, fused: bool = False) -> None:
        pack = lambda *linears, scale=1.0: fuse(linears, dtype, scale)  # noqa: E731
        scale = layer_shape.head_dim**-0.5  # of the energies
        pack_module = lambda module: copy.deepcopy(module).to(dtype).eval().requires_grad_(False)  # noqa: E731
        self.layers = [
            Layer(
                pack(x.attention.Wq, x.attention.Wk, x.attention.Wv, scale=scale), pack(x.attention.Wo),
                *((None, None) if x.cross is None else (pack(x.cross.Wq, scale=scale), pack(x.cross.Wo))),
                pack(x.feed.W1), pack(x.feed.W2),
                [pack_module(residual)
                 for residual in (x.around_attention, x.around_cross, x.around_feed) if residual],
            )
            for x in stack.layers
        ]  # fmt: skip
        self.norm, self.position, self.layer_shape = pack_module(stack.norm), stack.position, layer_shape
        residuals = [residual for layer in self.layers for residual in layer.residuals]
        sample = self.layers[0].qkv[0].new_empty(1, layer_shape.dim)
        self.fused_residuals = fused and can_fuse(sample, residuals, self.norm, min_rows=1)
        self.fused_relu = fused and layer_shape.activation == "relu"
        self._positions = self.layers[0].qkv[0].new_zeros(0, layer_shape.dim)

    def sublayers(
        self,
        layer: Layer,
        self_attention: Callable[[Tensor], Tensor],
        cross_attention: Callable[[Tensor], Tensor] | None = None,
    ) -> list[Sublayer]:
        """The sublayers of a layer in order: each a residual connection and the function inside it.

        Args:
            self_attention: maps fused queries, keys and values (…, 3 · dim) to the concatenated heads.
            cross_attention: maps queries (…, dim) to the concatenated heads.
        """
        functions = [lambda x: F.linear(self_attention(F.linear(x, *layer.qkv)), *layer.out)]
        if layer.cross is not None and layer.cross_out is not None and cross_attention is not None:
            query, out, attend = layer.cross, layer.cross_out, cross_attention
            functions.append(lambda x: F.linear(attend(F.linear(x, *query)), *out))
        functions.append(lambda x: F.linear(self._up(x, layer.up), *layer.down))
        return list(zip(layer.residuals, functions, strict=True))

    def run(self, x: Tensor, sublayers: list[Sublayer]) -> Tensor:
        """The sublayers of all layers and the final norm of x (…, dim)."""
        if self.fused_residuals:
            return run_sublayers(x, sublayers, self.norm)
        for residual, sublayer in sublayers:
            x = residual(x, sublayer)
        return self.norm(x)

    def _up(self, x: Tensor, up: Linear) -> Tensor:
        """The first linear layer of a feed-forward block, with its activation."""
        weight, bias = up
        if self.fused_relu and bias is not None:
            rows = torch.ops.aten._addmm_activation(
                bias, x.flatten(0, -2), weight.t()
            )  # ReLU in cuBLAS's epilogue
            return rows.view(*x.shape[:-1], -1)
        return self._activation(F.linear(x, weight, bias))

    def _activation(self, h: Tensor) -> Tensor:
        if self.layer_shape.activation != "swiglu":
            return ACTIVATIONS[self.layer_shape.activation](h)
        a, b = h.chunk(2, -1)
        return F.silu(a) * b

    def positions(self, length: int) -> Tensor:
        """Return the position vectors (length, dim); zeros past the end of a learned table (never read)."""
        if len(self._positions) < length:
            table = self._positions.new_zeros(1, bucket(length), self.layer_shape.dim)
            end = table.shape[1]
            if isinstance(self.position, Learned):
                end = min(end, self.position.maxlen)
            table[:, :end] = self.position(table[:, :end])
            self._positions = table[0]
        return self._positions[:length]


def fuse(linears: tuple[nn.Linear, ...], dtype: torch.dtype, scale: float = 1.0) -> Linear:
    """Fuse linear layers of the same input; the output of the first is multiplied by `scale`."""
    scales = [scale, *[1.0] * (len(linears) - 1)]
    bias = (
        None
        if linears[0].bias is None
        else torch.cat([m.bias.detach() * s for m, s in zip(linears, scales, strict=True)]).to(dtype)
    )
    return torch.cat([m.weight.detach() * s for m, s in zip(linears, scales, strict=True)]).to(dtype), bias


class Readout:
    """The projection to the vocabulary; scores are float32, or float64 for a float64 model.

    The bias is an extra column of the matrix, multiplied by a feature of 1, so one matmul is enough. PAD, BOS
    and the ids that pad the vocabulary get a score of −inf.
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
        return F.linear(x, self.weight).to(score_dtype(x.dtype))


def score_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of energies and probabilities."""
    return torch.float64 if dtype == torch.float64 else torch.float32
