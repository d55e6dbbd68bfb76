"""Which models the engines can run, and their tensors in the order of the C++ engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.energy import ScaledDot
from regard.attention.normalize import Softmax
from regard.attention.position import Learned, Sinusoidal
from regard.data.tokenizer import BOS, PAD
from regard.layers.feedforward import FeedForward
from regard.layers.multihead import MultiHead
from regard.layers.residual import LayerNorm
from regard.models.attention_options import NoPosition
from regard.models.frames import FrameProjection
from regard.models.transformer import TransformerDecoder, TransformerEncoder, TransformerLayer

ACTIVATIONS = {"relu": 0, "gelu": 1, "swiglu": 2, "gelu-tanh": 3, "swish": 4}
NORMS = {nn.Identity: 0, LayerNorm: 1, nn.RMSNorm: 2}


@dataclass(frozen=True)
class LayerShape:
    """The sizes and kinds that all layers of a model share."""

    dim: int
    heads: int
    head_dim: int
    inner: int  # of the feed-forward layer
    activation: str
    norm_place: str  # pre or post
    norm: int


class Unsupported(Exception):
    """The reason why the engines cannot run a model."""


def layer_shape(model: Any) -> LayerShape:
    """Return the shape of the layers of a model; raises Unsupported if the engines cannot run it."""
    stacks = [model.decoder] + ([model.encoder] if hasattr(model, "encoder") else [])
    for stack, kind in zip(stacks, (TransformerDecoder, TransformerEncoder), strict=False):
        if type(stack) is not kind:
            raise Unsupported(f"it runs Transformers, and this model has a {type(stack).__name__}")
        if not isinstance(stack.position, Sinusoidal | Learned | NoPosition):
            raise Unsupported(
                "positions must be added to the embeddings, and here they are a "
                f"{type(stack.position).__name__}"
            )
    if isinstance(getattr(model, "source", None), FrameProjection):
        raise Unsupported("the model reads sequences of numbers instead of tokens")
    if isinstance(model.output.readout, nn.Linear):
        raise Unsupported("the output has a linear layer before the projection to the vocabulary")
    if hasattr(model, "source") and model.source.scale != model.target.scale:
        raise Unsupported("source and target embeddings are scaled differently")
    shapes = {_shape_of(layer) for stack in stacks for layer in stack.layers}
    if len(shapes) > 1:
        raise Unsupported("the layers differ in heads, width, norm or activation")
    shape = shapes.pop()
    if shape.activation not in ACTIVATIONS:
        raise Unsupported(f"the activation is {shape.activation}")
    if shape.dim % 16 or shape.head_dim % 16 or shape.inner % 16:
        raise Unsupported("dim, inner and the width of a head must be multiples of 16")
    return shape


def _shape_of(layer: TransformerLayer) -> LayerShape:
    for heads in (layer.attention, layer.cross):
        if heads is None:
            continue
        if type(heads) is not MultiHead or type(heads.energy) is not ScaledDot:
            raise Unsupported("attention is not the plain scaled dot product of full heads")
        plain = (
            type(heads.normalize) is Softmax
            and heads.normalize.temperature == 1.0
            and heads.normalize.sinks is None
        )
        if not plain:
            raise Unsupported(f"attention is normalised by {heads.normalize}, not by softmax")
        extra = (heads.mask, heads.bias, heads.gate, heads.softcap, heads.rotary)
        if any(x is not None for x in extra) or heads.key_heads != heads.heads:
            raise Unsupported(
                "attention has a mask, bias, gate, soft cap, rotation or shared key heads of its own"
            )
        if heads.Wo is None or heads.Wo.out_features != heads.dim or heads.value_head_dim != heads.head_dim:
            raise Unsupported("heads have other widths than usual")
    feed: FeedForward = layer.feed
    norm = layer.around_attention.norm
    return LayerShape(
        layer.dim, layer.attention.heads, layer.attention.head_dim, feed.W2.in_features, feed.activation,  # type: ignore[union-attr]
        layer.around_attention.place, NORMS[type(norm)],
    )  # fmt: skip


def model_tensors(model: Any) -> list[Tensor | None]:
    """Return the tensors of a model in the order of `engine_new`."""
    tensors: list[Tensor | None] = [model.target.table.weight]
    if hasattr(model, "encoder"):
        tensors += [model.source.table.weight, *_stack(model.encoder)]
        cross = [layer.cross for layer in model.decoder.layers]
        tensors += _fused([linear for heads in cross for linear in (heads.Wk, heads.Wv)])
    tensors += _stack(model.decoder)
    projection = model.output.projection
    bias = (
        torch.zeros(projection.out_features) if projection.bias is None else projection.bias.detach().clone()
    )
    bias[[PAD, BOS]] = -torch.inf  # never generated
    return [*tensors, projection.weight, bias]


def _stack(stack: Any) -> list[Tensor | None]:
    tensors: list[Tensor | None] = []
    for layer in stack.layers:
        attention, cross, feed = layer.attention, layer.cross, layer.feed
        tensors += [*_fused([attention.Wq, attention.Wk, attention.Wv]), *_linear(attention.Wo)]
        tensors += _norm(layer.around_attention.norm)
        if cross is not None:
            tensors += [*_linear(cross.Wq), *_linear(cross.Wo), *_norm(layer.around_cross.norm)]
        tensors += [*_linear(feed.W1), *_linear(feed.W2), *_norm(layer.around_feed.norm)]
    return tensors + _norm(stack.norm)


def _linear(linear: nn.Linear) -> list[Tensor | None]:
    return [linear.weight, linear.bias]


def _fused(layers: list[nn.Linear]) -> list[Tensor | None]:
    """Several linear layers of the same input as one."""
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return [torch.cat([layer.weight for layer in layers]), bias]


def _norm(norm: nn.Module) -> list[Tensor | None]:
    return [] if isinstance(norm, nn.Identity) else [norm.weight, getattr(norm, "bias", None)]  # type: ignore[list-item]


def epsilon(norm: nn.Module) -> float:
    """Return the epsilon of a norm; torch's RMSNorm uses that of the dtype for None."""
    eps = getattr(norm, "eps", 0.0)
    return torch.finfo(torch.float32).eps if eps is None else float(eps)


def position_table(stack: Any, dim: int, length: int) -> Tensor | None:
    """Return the position vectors of the first positions, (length, dim); None if the model has none."""
    if isinstance(stack.position, NoPosition):
        return None
    if isinstance(stack.position, Learned):
        length = min(length, stack.position.maxlen)
    with torch.no_grad():
        return stack.position(torch.zeros(1, length, dim))[0].contiguous()
