"""Layer costs against the lecture's table, torch's FLOP counter and dependencies measured by gradients."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard import Additive, Bilinear, Causal, MultiHead, Window
from regard.attention import Dilated, plan
from regard.errors import OptionError
from regard.evaluation import cost
from regard.evaluation.layer_cost import comparison
from regard.layers import Convolution, Recurrence, SlicedMultiHead

T, M, K = 48, 16, 8


def test_quoted_and_counted_costs_of_the_lectures_table():
    conv, recurrent, full, band = (cost(row.layer, T) for row in comparison(T, M, K))
    assert conv.parameters == K * M * M
    assert conv.operations == T * K * M * M
    assert recurrent.parameters == 2 * M * M
    assert recurrent.operations == 2 * T * M * M
    assert (recurrent.path_length, recurrent.steps) == (T, T)
    assert full.parameters == band.parameters == 3 * M * M
    assert full.parts == {"projections": 3 * T * M * M, "energies": T * T * M, "values": T * T * M}
    assert (full.path_length, full.steps) == (1, 1)
    allowed = sum(min(T, t + K // 2 + 1) - max(0, t - K // 2) for t in range(T))
    assert band.parts["energies"] == allowed * M
    assert band.path_length == -(-(T - 1) // (K // 2))  # about 2T/K, where T/K is quoted


def test_attention_has_fewer_parameters_only_for_kernels_above_three():
    for kernel in (2, 3, 4):
        fewer = (
            cost(MultiHead(M, 1, project=False, linear_bias=False), T).parameters
            < cost(Convolution(M, kernel, bias=False), T).parameters
        )
        assert fewer == (kernel > 3)


@pytest.mark.parametrize(
    "layer",
    [
        Convolution(M, 5, bias=False),
        MultiHead(M, 4, linear_bias=False),
        MultiHead(M, 4, key_heads=2, value_head_dim=6),
        SlicedMultiHead(M, 4, rank=3),
        MultiHead(M, 4, energy=Bilinear(4)),
        MultiHead(M, 4, energy=Bilinear(4, heads=4)),
        MultiHead(M, 4, energy=Bilinear(4, rank=3)),
        MultiHead(M, 4, key_heads=2, energy=Bilinear(4, rank=3, heads=4)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_operations_agree_with_torchs_counter(layer, monkeypatch):
    reference = {"reference": plan.KERNELS["reference"]}  # the counter sees plain matrix products only
    monkeypatch.setattr(plan, "KERNELS", reference)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.randn(1, T, M))
    assert 2 * cost(layer, T).operations == counter.get_total_flops()


def dependencies(layer, T):
    """(T, T) booleans: whether output t depends on input s, found by gradients."""
    x = torch.randn(T, M, dtype=torch.float64, requires_grad=True)
    out = layer.double()(x[None])[0]
    return torch.stack(
        [torch.autograd.grad(out[t].sum(), x, retain_graph=True)[0].abs().sum(-1) > 0 for t in range(T)]
    )


@pytest.mark.parametrize(
    "layer",
    [
        Convolution(M, 3),
        Convolution(M, 4),
        Convolution(M, 5, causal=True),
        MultiHead(M, 2),
        MultiHead(M, 2, mask=Causal()),
        MultiHead(M, 2, mask=Window.centered(4)),
        MultiHead(M, 2, mask=Window(3)),
        MultiHead(M, 2, mask=Dilated(2) & Window(4, 4)),
        SlicedMultiHead(M, 2, mask=Window(1, 1)),
    ],
)
def test_path_length_equals_that_of_the_dependencies(layer):
    T = 20
    step = dependencies(layer, T) | torch.eye(T, dtype=torch.bool)
    reached, layers = step, 1
    while True:
        with_one_more = (reached.float() @ step.float()) > 0
        if torch.equal(with_one_more, reached):
            break
        reached, layers = with_one_more, layers + 1
    assert cost(layer, T).path_length == layers


@pytest.mark.parametrize("heads", [None, 2])
def test_the_vector_of_an_additive_energy_is_not_counted_as_a_projection(heads):
    layer = MultiHead(M, 2, energy=Additive(8, hidden=5, heads=heads))
    result = cost(layer, T)
    assert result.parts["energy's own projections"] == T * 2 * 2 * 8 * 5
    assert result.parts["energies"] == 2 * T * T * 5  # v, once per pair and head
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer.energy(torch.randn(1, 2, T, 8), torch.randn(1, 2, T, 8))  # only matrix products are counted
    assert 2 * result.parts["energy's own projections"] == counter.get_total_flops()


def test_learned_energies_and_gates_are_counted():
    layer = MultiHead(M, 2, energy=Additive(8, hidden=5))
    result = cost(layer, T)
    assert result.parts["energies"] == 2 * T * T * 5
    assert result.parts["energy's own projections"] == T * 2 * 2 * 8 * 5
    assert cost(Recurrence(M, cell="lstm"), T).operations == T * 8 * M * M
    assert cost(torch.nn.Linear(4, 6), T).operations == T * 24


def test_unsupported_layers_are_an_error():
    with pytest.raises(OptionError, match="the cost of Tanh cannot be counted"):
        cost(torch.nn.Tanh(), 4)
    with pytest.raises(OptionError, match="T must be an integer of at least 1, got 0"):
        cost(Convolution(M, 3), 0)
