"""rollout.py and max_flow.py: rollout by matrix products, flow by the smallest cut."""

from itertools import product

import pytest
import torch

from regard.evaluation.explanation.max_flow import FlowNetwork
from regard.evaluation.explanation.rollout import attention_flow, attention_rollout


def smallest_cut(edges, nodes, source, sink):
    """The capacity of the cheapest cut, by trying all of them: equal to the maximum flow."""
    others = [node for node in range(nodes) if node not in (source, sink)]
    best = float("inf")
    for sides in product((False, True), repeat=len(others)):
        inside = {source} | {node for node, side in zip(others, sides, strict=True) if side}
        best = min(best, sum(c for a, b, c in edges if a in inside and b not in inside))
    return best


def test_the_maximum_flow_is_the_smallest_cut():
    draw = torch.Generator().manual_seed(0)
    for nodes in range(3, 9):
        capacities = torch.rand(nodes, nodes, generator=draw, dtype=torch.float64)
        has_edge = torch.rand(nodes, nodes, generator=draw) < 0.5
        edges = [
            (a, b, float(capacities[a, b]))
            for a in range(nodes)
            for b in range(nodes)
            if a != b and has_edge[a, b]
        ]
        network = FlowNetwork(nodes)
        for edge in edges:
            network.add_edge(*edge)
        expected = smallest_cut(edges, nodes, 0, nodes - 1)
        assert network.max_flow(0, nodes - 1) == pytest.approx(expected, abs=1e-9)
        assert network.max_flow(0, nodes - 1) == pytest.approx(expected, abs=1e-9)  # the network is unchanged


def layers_of(count, size, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.softmax(2 * torch.randn(size, size, generator=draw).double(), -1) for _ in range(count)]


def test_rollout_is_the_product_of_residual_layers():
    low, high = layers_of(2, 4)
    eye = torch.eye(4, dtype=torch.float64)
    expected = (0.5 * high + 0.5 * eye) @ (0.5 * low + 0.5 * eye)
    for row in range(4):
        torch.testing.assert_close(attention_rollout([low, high], eye[row]), expected[row])
    torch.testing.assert_close(attention_rollout([], eye[2]), eye[2])


def test_flow_is_the_smallest_cut_of_the_layers():
    low, high = layers_of(2, 2, seed=1)
    top, eye = torch.tensor([0.3, 0.7], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    flow = attention_flow([low, high], top)
    upper, lower = ((w / 2 + eye / 2).tolist() for w in (high, low))
    edges = [(0, 1, 0.3), (0, 2, 0.7)]
    edges += [(1 + i, 3 + j, upper[i][j]) for i in range(2) for j in range(2)]
    edges += [(3 + i, 5 + j, lower[i][j]) for i in range(2) for j in range(2)]
    for token in range(2):
        assert float(flow[token]) == pytest.approx(smallest_cut(edges, 7, 0, 5 + token), abs=1e-9)


def test_flow_through_one_layer_is_its_row():
    """With one layer there is one path to each token."""
    (layer,) = layers_of(1, 5)
    eye = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(attention_flow([layer], eye[3]), (layer[3] + eye[3]) / 2)


def test_flow_is_never_below_rollout():
    """Rollout is a feasible flow: it splits at each node in proportion."""
    layers = layers_of(3, 6)
    top = torch.softmax(torch.randn(6, generator=torch.Generator().manual_seed(5)).double(), -1)
    assert bool((attention_flow(layers, top) >= attention_rollout(layers, top) - 1e-9).all())
