"""Names and channel order of MarianMT's weights, for export and import.

MarianMT's sinusoidal positions have all sines before all cosines; ours alternate. So all channels of the
model are reordered: in the embeddings, in the columns of weights that read them and in the rows of weights
that write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "swish": "swish"}

_LAYER = {"attention": "self_attn", "cross": "encoder_attn"}
_NORMS = {"attention": "self_attn_layer_norm", "cross": "encoder_attn_layer_norm", "feed": "final_layer_norm"}


class WeightName(NamedTuple):
    """Our name and MarianMT's name of a weight, and its axis of model channels; None: it has none."""

    ours: str
    theirs: str
    channel_axis: int | None


def weight_names(config: dict[str, Any]) -> Iterator[WeightName]:
    """Yield every weight of a model with this config, tied weights once."""
    if config["tie"] == "all":
        yield WeightName("target.table.weight", "model.shared.weight", 1)
    else:
        yield WeightName("source.table.weight", "model.encoder.embed_tokens.weight", 1)
        yield WeightName("target.table.weight", "model.decoder.embed_tokens.weight", 1)
    if config["tie"] == "none":
        yield WeightName("output.projection.weight", "lm_head.weight", 1)
    for side in ("encoder", "decoder"):
        for i in range(config[side]["layers"]):
            for ours, theirs, axis in _layer(side == "decoder"):
                yield WeightName(f"{side}.layers.{i}.{ours}", f"model.{side}.layers.{i}.{theirs}", axis)


def _layer(cross: bool) -> Iterator[WeightName]:
    for ours, theirs in _LAYER.items():
        if ours == "cross" and not cross:
            continue
        for letter in "qkv":
            yield WeightName(f"{ours}.W{letter}.weight", f"{theirs}.{letter}_proj.weight", 1)
            yield WeightName(f"{ours}.W{letter}.bias", f"{theirs}.{letter}_proj.bias", None)
        yield WeightName(f"{ours}.Wo.weight", f"{theirs}.out_proj.weight", 0)
        yield WeightName(f"{ours}.Wo.bias", f"{theirs}.out_proj.bias", 0)
    yield WeightName("feed.W1.weight", "fc1.weight", 1)
    yield WeightName("feed.W1.bias", "fc1.bias", None)
    yield WeightName("feed.W2.weight", "fc2.weight", 0)
    yield WeightName("feed.W2.bias", "fc2.bias", 0)
    for ours, theirs in _NORMS.items():
        if ours != "cross" or cross:
            yield WeightName(f"around_{ours}.norm.weight", f"{theirs}.weight", 0)
            yield WeightName(f"around_{ours}.norm.bias", f"{theirs}.bias", 0)


def channel_order(dim: int) -> Tensor:
    """Return the index of our channel for each of MarianMT's: 0 2 4 … 1 3 5 …"""
    return torch.cat([torch.arange(0, dim, 2), torch.arange(1, dim, 2)])


def reorder(x: Tensor, axis: int | None, order: Tensor) -> Tensor:
    """Return a copy with the entries along `axis` in this order."""
    return x.clone() if axis is None else x.index_select(axis, order)
