"""Layers that are separable or equivariant in T: examples and counterexamples of the lecture."""

import pytest
import torch

import regard
from regard import Causal, MultiHead, Window
from regard.errors import OptionError
from regard.evaluation import is_equivariant, is_separable
from regard.layers import Convolution, Recurrence, SlicedMultiHead

CASES = [  # layer, separable, equivariant
    (Convolution(8, 1), True, True),
    (Convolution(8, 3), False, False),
    (MultiHead(8, 2), False, True),
    (SlicedMultiHead(8, 2), False, True),
    (MultiHead(8, 2, mask=Causal()), False, False),
    (MultiHead(8, 2, mask=Window.centered(2)), False, False),
    (Recurrence(8), False, False),
]


@pytest.mark.parametrize(
    ("layer", "separable", "equivariant"),
    CASES,
    ids=lambda x: type(x).__name__ if isinstance(x, torch.nn.Module) else str(x),
)
def test_the_examples_of_the_lecture_have_their_properties(layer, separable, equivariant):
    result = is_separable(layer), is_equivariant(layer)
    assert (bool(result[0]), bool(result[1])) == (separable, equivariant)
    for finding in result:
        assert (finding.violation < 1e-12) if finding else (finding.violation > 1e-3)


def test_a_position_dependent_layer_is_neither_separable_nor_equivariant():
    positions = regard.Sinusoidal(8)
    assert not is_separable(positions)
    assert not is_equivariant(positions)


def test_any_function_can_be_tested_and_the_layer_is_unchanged():
    assert is_separable(lambda x: x.relu(), dim=3)
    assert is_equivariant(lambda x: x - x.mean(-2, keepdim=True), dim=3)
    assert not is_separable(lambda x: x - x.mean(-2, keepdim=True), dim=3)
    layer = MultiHead(8, 2, dropout=0.5)
    assert is_equivariant(layer)  # dropout is switched off
    assert layer.training
    assert layer.Wq.weight.dtype == torch.float32


def test_invalid_input_is_an_error():
    with pytest.raises(OptionError, match="give it as dim="):
        is_separable(lambda x: x)
    with pytest.raises(OptionError, match="T must be an integer of at least 2"):
        is_equivariant(Convolution(8, 1), T=1)
