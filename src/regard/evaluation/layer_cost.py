"""Cost of a layer: parameters, operations, path length and sequential steps.

Operations are multiply-adds for one sequence of length T. Path length is the number of layers or
recurrent steps on the shortest path from x_s to z_t, maximised over all connected pairs (t, s). `comparison`
adds the values of Schmidt-Thieme's table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.arguments import integer
from regard.attention.energy import Additive, Bilinear, Distance, Match
from regard.attention.position_masks import Window
from regard.errors import OptionError
from regard.layers.convolution import Convolution
from regard.layers.multihead import MultiHead, SlicedMultiHead
from regard.layers.recurrent import Recurrence

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


@dataclass(frozen=True)
class Cost:
    """The cost of one layer at length T; `parts` breaks down the operations."""

    parameters: int
    operations: int
    path_length: int
    steps: int
    parts: dict[str, int]


def cost(layer: nn.Module, T: int) -> Cost:
    """Count parameters, operations (multiply-adds of one sequence), path length and sequential steps at
    length T.
    """
    integer("T", T)
    if isinstance(layer, Convolution):
        conv = layer.weight
        parts = {"convolution": T * layer.kernel * conv.in_channels * conv.out_channels}
        left, right = layer.reach
        distance = torch.arange(T)[None, :] - torch.arange(T)[:, None]
        path, steps = _hops((distance >= -left) & (distance <= right)), 1
    elif isinstance(layer, Recurrence):
        rnn = layer.weight
        ways = 2 if layer.bidirectional else 1
        gates = GATES[layer.cell] * rnn.hidden_size
        parts = {"input": ways * T * gates * rnn.input_size, "recurrence": ways * T * gates * rnn.hidden_size}
        path, steps = T, T
    elif isinstance(layer, MultiHead | SlicedMultiHead):
        parts, path, steps = _attention_parts(layer, T), _hops(_allowed_pairs(layer, T).any(0)), 1
    elif isinstance(layer, nn.Linear):
        parts, path, steps = {"projection": T * layer.in_features * layer.out_features}, 1, 1
    else:
        known = "Convolution, Recurrence, MultiHead, SlicedMultiHead, nn.Linear"
        raise OptionError(
            f"the cost of {type(layer).__name__} cannot be counted; supported layers are {known}"
        )
    count = sum(p.numel() for p in layer.parameters())
    return Cost(count, sum(parts.values()), path, steps, parts)


def _attention_parts(layer: MultiHead | SlicedMultiHead, T: int) -> dict[str, int]:
    if isinstance(layer, MultiHead):
        projections = sum(x.in_features * x.out_features for x in (layer.Wq, layer.Wk, layer.Wv))
        key_dim, value_dim = layer.head_dim, layer.value_head_dim
        out = 0 if layer.Wo is None else layer.Wo.in_features * layer.Wo.out_features
    else:
        projections = sum(x.numel() for x in (layer.W, layer.V, layer.U))
        key_dim, value_dim, out = layer.W.shape[1], layer.U.shape[1], layer.Q.numel()
    pairs = int(_allowed_pairs(layer, T).sum())  # over all heads
    parts = {
        "projections": T * projections,
        "energies": pairs * _per_pair(layer, key_dim),
        "values": pairs * value_dim,
    }
    if isinstance(layer.energy, nn.Module):
        per_head = (p if p.ndim == 2 else p[0] for p in _matrices(layer.energy))
        parts["energy's own projections"] = T * layer.heads * sum(p.numel() for p in per_head)
    return parts | ({"output": T * out} if out else {})


def _matrices(energy: nn.Module) -> list[Tensor]:
    """Matrices that an energy applies to each query or key: (…, …), or per head (heads, …, …)."""
    if isinstance(energy, Additive):  # not v, which is a matrix if there is one per head
        return [energy.Wq.weight, energy.Wk.weight]
    if isinstance(energy, Bilinear):
        return [energy.W] if energy.V is None else [energy.W, energy.V]
    return [p for p in energy.parameters() if p.ndim == 2]


def _per_pair(layer: MultiHead | SlicedMultiHead, key_dim: int) -> int:
    """Multiply-adds of one energy."""
    if isinstance(layer.energy, Additive):
        return layer.energy.hidden
    if isinstance(layer.energy, Bilinear) and layer.energy.rank is not None:
        return layer.energy.rank
    return key_dim if not isinstance(layer.energy, Distance | Match) else 2 * key_dim


def _allowed_pairs(layer: MultiHead | SlicedMultiHead, T: int) -> Tensor:
    """Pairs that the layer's own mask allows, (heads, T, T)."""
    if layer.mask is None:
        return torch.ones(layer.heads, T, T, dtype=torch.bool)
    allowed = layer.mask.dense(T, T)
    allowed = allowed.reshape(-1, *allowed.shape[-3:]).any(0) if allowed.ndim > 3 else allowed
    return allowed.expand(layer.heads, T, T)


def _hops(reach: Tensor) -> int:
    """Number of layers until all connected pairs are connected. reach[t, s]: z_t depends on x_s after one
    layer.
    """
    step = reach | torch.eye(len(reach), dtype=torch.bool)  # the residual connection
    powers = [step]
    while True:  # square until nothing changes
        wider = _compose(powers[-1], powers[-1])
        if bool((wider == powers[-1]).all()):
            break
        powers.append(wider)
    if len(powers) == 1:
        return 1
    goal, have, hops = powers[-1], powers[-2], 2 ** (len(powers) - 2)
    # Binary search for the largest number of layers that is not enough.
    for i in range(len(powers) - 3, -1, -1):
        wider = _compose(have, powers[i])
        if not bool((wider == goal).all()):
            have, hops = wider, hops + 2**i
    return hops + 1


def _compose(a: Tensor, b: Tensor) -> Tensor:
    return (a.float() @ b.float()) > 0


@dataclass(frozen=True)
class CostRow:
    """A row of Schmidt-Thieme's table: quoted parameters, operations, path length, steps, and the layer."""

    name: str
    quoted: tuple[str, str, str, str]
    quoted_values: tuple[float | None, ...]  # None: not in the table
    layer: nn.Module


def comparison(T: int, dim: int, window: int) -> list[CostRow]:
    """Schmidt-Thieme's table of attention and convolution; recurrence and steps are from Vaswani et al. 2017,
    table 1.
    """
    M, K = dim, window
    full, band = (
        MultiHead(M, 1, project=False, linear_bias=False, mask=m) for m in (None, Window.centered(K))
    )
    convolution = (K * M * M, T * K * M * M, T / K, 1)
    return [
        CostRow("convolution", ("KM²", "TKM²", "T/K", "1"), convolution, Convolution(M, K, bias=False)),
        CostRow("recurrence", ("", "TM²", "T", "T"), (None, T * M * M, T, T), Recurrence(M, bias=False)),
        CostRow("attention", ("3M²", "T²M", "1", "1"), (3 * M * M, T * T * M, 1, 1), full),
        CostRow("restricted attention", ("3M²", "TKM", "T/K", "1"), (3 * M * M, T * K * M, T / K, 1), band),
    ]


def quoted_differences(
    T: int, window: int, convolution: Cost, recurrence: Cost, attention: Cost, restricted: Cost
) -> list[str]:
    """Explain where the quoted and the counted costs of `comparison` differ, one sentence each."""
    K, parts = window, attention.parts
    fewer = "fewer" if attention.parameters < convolution.parameters else "not fewer"
    return [
        f"T²M leaves out the projections, 3TM² = {parts['projections']:,}, and counts one of two "
        f"products: energies {parts['energies']:,} and values {parts['values']:,}",
        f"a band of K = {K} reaches K/2 to each side (K + 1 keys for even K), so joining all pairs takes "
        f"about 2T/K = {2 * T / K:g} layers, counted {restricted.path_length}, not T/K = {T / K:g}; the "
        f"convolution: {convolution.path_length}",
        f"a recurrent layer multiplies its input and its state: 2TM² = {recurrence.operations:,}, not TM²",
        "attention has fewer parameters than a convolution only for K > 3; here 3M² = "
        f"{attention.parameters:,} is {fewer} than KM² = {convolution.parameters:,}",
    ]
