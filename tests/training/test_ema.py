"""Exponential moving average of the weights."""

import torch
from torch import nn

from regard.training.ema import Ema


def test_the_average_follows_its_formula():
    model = nn.Linear(2, 1, bias=False).double()
    ema = Ema(model, 0.5)
    expected = model.weight.detach().clone()
    for step in range(1, 30):
        with torch.no_grad():
            model.weight += torch.randn_like(model.weight)
        ema.update(step)
        d = min(0.5, (1 + step) / (10 + step))
        expected = d * expected + (1 - d) * model.weight.detach()
    torch.testing.assert_close(ema.averages[0], expected)


def test_applied_gives_the_model_the_averages_and_restores_its_weights_exactly():
    model = nn.Linear(3, 3)
    ema = Ema(model, 0.9)
    with torch.no_grad():
        model.weight.add_(1.0)
    weight, tensor = model.weight.detach().clone(), model.weight
    with ema.applied():
        assert torch.equal(model.weight, ema.tensors()["weight"]) and not torch.equal(model.weight, weight)
    assert torch.equal(model.weight, weight) and model.weight is tensor


def test_a_tied_weight_is_averaged_once():
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    assert list(Ema(model, 0.9).tensors()) == ["a.weight"]
