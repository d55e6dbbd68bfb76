"""Where each weight of a translator lies in Hugging Face's MarianMT, for the way there and the way back.

Its sinusoids stand in halves, all sines before all cosines; ours alternate. So the channels that run through the whole model are
put in another order: in word vectors, in what reads channels (columns) and in what writes them (rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "swish": "swish"}

_LAYER = {"attention": "self_attn", "cross": "encoder_attn"}
_NORMS = {"attention": "self_attn_layer_norm", "cross": "encoder_attn_layer_norm", "feed": "final_layer_norm"}


class Place(NamedTuple):
    """A weight by our name and by theirs, and the axis along which its channels lie; None: it has none."""

    ours: str
    theirs: str
    axis: int | None


def places(config: dict[str, Any]) -> Iterator[Place]:
    """Every weight of the model of this config, tied ones once."""
    if config["tie"] == "all":
        yield Place("target.table.weight", "model.shared.weight", 1)
    else:
        yield Place("source.table.weight", "model.encoder.embed_tokens.weight", 1)
        yield Place("target.table.weight", "model.decoder.embed_tokens.weight", 1)
    if config["tie"] == "none":
        yield Place("output.words.weight", "lm_head.weight", 1)
    for side in ("encoder", "decoder"):
        for i in range(config[side]["layers"]):
            for ours, theirs, axis in _layer(side == "decoder"):
                yield Place(f"{side}.layers.{i}.{ours}", f"model.{side}.layers.{i}.{theirs}", axis)


def _layer(cross: bool) -> Iterator[Place]:
    for ours, theirs in _LAYER.items():
        if ours == "cross" and not cross:
            continue
        for letter in "qkv":
            yield Place(f"{ours}.W{letter}.weight", f"{theirs}.{letter}_proj.weight", 1)
            yield Place(f"{ours}.W{letter}.bias", f"{theirs}.{letter}_proj.bias", None)
        yield Place(f"{ours}.Wo.weight", f"{theirs}.out_proj.weight", 0)
        yield Place(f"{ours}.Wo.bias", f"{theirs}.out_proj.bias", 0)
    yield Place("feed.W1.weight", "fc1.weight", 1)
    yield Place("feed.W1.bias", "fc1.bias", None)
    yield Place("feed.W2.weight", "fc2.weight", 0)
    yield Place("feed.W2.bias", "fc2.bias", 0)
    for ours, theirs in _NORMS.items():
        if ours != "cross" or cross:
            yield Place(f"around_{ours}.norm.weight", f"{theirs}.weight", 0)
            yield Place(f"around_{ours}.norm.bias", f"{theirs}.bias", 0)


def halves(dim: int) -> Tensor:
    """Which of our channels each of theirs is: 0 2 4 … 1 3 5 …"""
    return torch.cat([torch.arange(0, dim, 2), torch.arange(1, dim, 2)])


def ordered(x: Tensor, axis: int | None, order: Tensor) -> Tensor:
    return x.clone() if axis is None else x.index_select(axis, order)
