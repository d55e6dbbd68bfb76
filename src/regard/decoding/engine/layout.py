"""Which models the engine computes, and their numbers in the order in which it takes them."""

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
from regard.models.transformer import TransformerDecoder, TransformerEncoder, TransformerLayer

ACTIVATIONS = {"relu": 0, "gelu": 1, "swiglu": 2, "gelu-tanh": 3, "swish": 4}
NORMS = {nn.Identity: 0, LayerNorm: 1, nn.RMSNorm: 2}


@dataclass(frozen=True)
class Shape:
    """What all layers of a model share."""

    dim: int
    heads: int
    width: int  # of a head
    inner: int
    activation: str
    place: str
    norm: int


class Unsupported(Exception):
    """A model that the engine does not compute, and why."""


def shape(model: Any) -> Shape:
    """The shape of every layer of a model, or Unfit."""
    parts = [model.decoder] + ([model.encoder] if hasattr(model, "encoder") else [])
    for part, kind in zip(parts, (TransformerDecoder, TransformerEncoder), strict=False):
        if type(part) is not kind:
            raise Unsupported(f"it computes Transformers, and this model has a {type(part).__name__}")
        if not isinstance(part.position, Sinusoidal | Learned | NoPosition):
            raise Unsupported(
                f"its positions are added to the words, and here they are a {type(part.position).__name__}"
            )
    if isinstance(model.output.readout, nn.Linear):
        raise Unsupported("the output has a map between features and words")
    if hasattr(model, "source") and model.source.scale != model.target.scale:
        raise Unsupported("source and target words are scaled differently")
    shapes = {_layer(layer) for part in parts for layer in part.layers}
    if len(shapes) > 1:
        raise Unsupported(
            "its layers are all alike, and here they differ in heads, width, norm or activation"
        )
    found = shapes.pop()
    if found.activation not in ACTIVATIONS:
        raise Unsupported(f"the activation is {found.activation}")
    if found.dim % 16 or found.width % 16 or found.inner % 16:
        raise Unsupported("dim, inner and the width of a head must be multiples of 16")
    return found


def _layer(layer: TransformerLayer) -> Shape:
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
    return Shape(
        layer.dim, layer.attention.heads, layer.attention.head_dim, feed.W2.in_features, feed.activation,  # type: ignore[union-attr]
        layer.around_attention.place, NORMS[type(norm)],
    )  # fmt: skip


def tensors(model: Any, made: Shape) -> list[Tensor | None]:
    """All numbers of a model, in the order of engine_new."""
    found: list[Tensor | None] = [model.target.table.weight]
    if hasattr(model, "encoder"):
        found += [model.source.table.weight, *_stack(model.encoder, made)]
        cross = [layer.cross for layer in model.decoder.layers]
        found += _joined([map for heads in cross for map in (heads.Wk, heads.Wv)])
    found += _stack(model.decoder, made)
    words = model.output.projection
    bias = torch.zeros(words.out_features) if words.bias is None else words.bias.detach().clone()
    bias[[PAD, BOS]] = -torch.inf  # nobody writes these
    return [*found, words.weight, bias]


def _stack(part: Any, made: Shape) -> list[Tensor | None]:
    found: list[Tensor | None] = []
    for layer in part.layers:
        found += [
            *_joined([layer.attention.Wq, layer.attention.Wk, layer.attention.Wv]),
            *_map(layer.attention.Wo),
        ]
        found += _norm(layer.around_attention.norm)
        if layer.cross is not None:
            found += [*_map(layer.cross.Wq), *_map(layer.cross.Wo), *_norm(layer.around_cross.norm)]
        found += [*_map(layer.feed.W1), *_map(layer.feed.W2), *_norm(layer.around_feed.norm)]
    return found + _norm(part.norm)


def _map(linear: nn.Linear) -> list[Tensor | None]:
    return [linear.weight, linear.bias]


def _joined(maps: list[nn.Linear]) -> list[Tensor | None]:
    """Several maps of the same input as one."""
    bias = None if maps[0].bias is None else torch.cat([m.bias for m in maps])
    return [torch.cat([m.weight for m in maps]), bias]


def _norm(norm: nn.Module) -> list[Tensor | None]:
    return [] if isinstance(norm, nn.Identity) else [norm.weight, getattr(norm, "bias", None)]  # type: ignore[list-item]


def epsilon(norm: nn.Module) -> float:
    found = getattr(norm, "eps", 0.0)
    return torch.finfo(torch.float32).eps if found is None else float(found)


def positions(part: Any, dim: int, length: int) -> Tensor | None:
    """The vectors added to the first words; as long as a learned table is."""
    if isinstance(part.position, NoPosition):
        return None
    if isinstance(part.position, Learned):
        length = min(length, part.position.maxlen)
    with torch.no_grad():
        return part.position(torch.zeros(1, length, dim))[0].contiguous()
