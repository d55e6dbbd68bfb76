"""Attention through several layers: rollout and flow (Abnar & Zuidema 2020).

Above the first layer, attention weights refer to states that already mix several input tokens. Both methods
trace them back to the input tokens, with Ã = ½ W + ½ I for the residual connection of each layer (section 3):
rollout multiplies the Ã of all layers, and flow is the maximum flow from the output to a token through edges
with capacities Ã.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.evaluation.explanation.max_flow import FlowNetwork


def residual_attention(weights: Tensor) -> Tensor:
    """Ã = ½ W + ½ I with rows that sum to 1, for the mean weights of one layer, (T, T)."""
    mixed = (weights + torch.eye(len(weights), dtype=weights.dtype, device=weights.device)) / 2
    return mixed / mixed.sum(-1, keepdim=True)


def attention_rollout(layers: Sequence[Tensor], top: Tensor) -> Tensor:
    """The share of each token in the output, (T,): top · Ã_L ⋯ Ã_1.

    Args:
        layers: attention weights of each layer, (T, T), lowest first.
        top: the weight of each state of the last layer in the output, (T,).
    """
    share = top
    for weights in reversed(layers):
        share = share @ residual_attention(weights)
    return share


def attention_flow(layers: Sequence[Tensor], top: Tensor) -> Tensor:
    """The maximum flow from the output to each token, (T,). Takes the arguments of `attention_rollout`.

    Nodes are the states of all layers; an edge from state i of a layer to state j of the layer below has
    capacity Ãᵢⱼ, and one from the output to state i of the last layer has capacity topᵢ.
    """
    size = len(top)
    network = FlowNetwork(1 + (len(layers) + 1) * size)
    for i, capacity in enumerate(top.tolist()):
        network.add_edge(0, 1 + i, capacity)
    for depth, weights in enumerate(reversed(layers)):
        start = 1 + depth * size
        for i, row in enumerate(residual_attention(weights).tolist()):
            for j, capacity in enumerate(row):
                if capacity > 0:
                    network.add_edge(start + i, start + size + j, capacity)
    first = 1 + len(layers) * size
    flows = [network.max_flow(0, first + j) for j in range(size)]
    return torch.tensor(flows, dtype=torch.float64)
