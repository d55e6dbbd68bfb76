"""Adam against its paper's arithmetic, which weights decay, clipping."""

import math

import pytest
import torch
from torch import nn

from regard.recipe.schema import Optimizer
from regard.training import optimizer


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.map = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x):
        return self.norm(self.map(self.words(x)))


def test_a_step_is_the_arithmetic_of_kingma_and_ba():
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    model = nn.Module()
    model.weight = weight
    made = optimizer.make(model, Optimizer(lr=0.1, betas=[0.9, 0.98], eps=1e-9))
    m = v = torch.zeros(2, dtype=torch.float64)
    want = weight.detach().clone()
    for t, g in enumerate(([0.5, -1.0], [0.1, 3.0], [-2.0, 0.0]), 1):
        g = torch.tensor(g, dtype=torch.float64)
        weight.grad = g.clone()
        optimizer.set_rate(made, 0.1 / t)
        made.step()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        want -= 0.1 / t * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    torch.testing.assert_close(weight.detach(), want, rtol=1e-10, atol=1e-12)


def test_only_the_matrices_of_linear_maps_decay():
    assert optimizer.decayed(Small()) == {"map.weight"}


def test_a_table_that_is_also_the_output_does_not_decay():
    model = Small()
    model.out = nn.Linear(4, 5, bias=False)
    model.out.weight = model.words.weight
    assert optimizer.decayed(model) == {"map.weight"}


def test_adamw_takes_its_share_of_each_matrix_whatever_the_gradient():
    model = Small()
    made = optimizer.make(model, Optimizer(kind="adamw", lr=0.1, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    made.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (0.95 if name == "map.weight" else 1.0))


def test_gradients_are_clipped_by_their_joint_norm():
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert float(optimizer.clip([a, b], 1.0)) == pytest.approx(5.0)
    assert math.hypot(*a.grad.tolist(), *b.grad.tolist()) == pytest.approx(1.0, rel=1e-4)
    assert a.grad[0] / b.grad[0] == pytest.approx(0.75)


def test_short_gradients_and_no_limit_are_left_alone():
    a = nn.Parameter(torch.zeros(2))
    for longest in (10.0, None):
        a.grad = torch.tensor([3.0, 4.0])
        assert float(optimizer.clip([a], longest)) == pytest.approx(5.0)
        assert a.grad.tolist() == [3.0, 4.0]


def test_the_fused_optimizer_is_used_on_a_cpu():
    assert optimizer.make(Small(), Optimizer()).param_groups[0]["fused"] is True
