"""Adam against its paper, parameter groups, clipping, and added optimizers."""

import math
from typing import Literal

import pytest
import torch
from torch import nn

from regard.errors import RecipeError, RegardError
from regard.optimization import optimizers
from regard.optimization.optimizers import OPTIMIZERS, Adam, AdamW, OptimizerOptions
from regard.recipe.loading import load_recipe
from regard.training.trainer import resume, train
from tests.training import tiny


class SmallModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.map = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x):
        return self.norm(self.map(self.embedding(x)))


def test_adam_is_algorithm_1_of_kingma_and_ba():
    weight = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    model = nn.Module()
    model.weight = weight
    optimizer = optimizers.make_optimizer(model, Adam(lr=0.1, betas=[0.9, 0.98], eps=1e-9))
    m = v = torch.zeros(2, dtype=torch.float64)
    expected = weight.detach().clone()
    for t, g in enumerate(([0.5, -1.0], [0.1, 3.0], [-2.0, 0.0]), 1):
        g = torch.tensor(g, dtype=torch.float64)
        weight.grad = g.clone()
        optimizers.set_learning_rate(optimizer, 0.1 / t)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        expected -= 0.1 / t * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-10, atol=1e-12)


def test_only_matrices_of_linear_layers_have_weight_decay():
    assert optimizers.decayed_parameters(SmallModel()) == {"map.weight"}


def test_a_tied_embedding_has_no_weight_decay():
    model = SmallModel()
    model.out = nn.Linear(4, 5, bias=False)
    model.out.weight = model.embedding.weight
    assert optimizers.decayed_parameters(model) == {"map.weight"}


def test_with_decay_embeddings_a_table_has_weight_decay_and_norms_and_biases_have_none():
    options = AdamW(lr=0.1, weight_decay=0.5, decay_embeddings=True)
    model = SmallModel()
    decayed, others = optimizers.make_optimizer(model, options).param_groups
    assert {id(p) for p in decayed["params"]} == {id(model.embedding.weight), id(model.map.weight)}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.5, 0.0) and len(others["params"]) == 3


def test_adamw_decays_weights_independently_of_the_gradient():
    model = SmallModel()
    optimizer = optimizers.make_optimizer(model, AdamW(lr=0.1, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (0.95 if name == "map.weight" else 1.0))


def test_gradients_are_clipped_by_their_total_norm():
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert float(optimizers.clip_gradients([a, b], 1.0)) == pytest.approx(5.0)
    assert math.hypot(*a.grad.tolist(), *b.grad.tolist()) == pytest.approx(1.0, rel=1e-4)
    assert a.grad[0] / b.grad[0] == pytest.approx(0.75)


def test_small_gradients_are_not_clipped():
    a = nn.Parameter(torch.zeros(2))
    for max_norm in (10.0, None):
        a.grad = torch.tensor([3.0, 4.0])
        assert float(optimizers.clip_gradients([a], max_norm)) == pytest.approx(5.0)
        assert a.grad.tolist() == [3.0, 4.0]


def test_the_fused_optimizer_is_used_on_a_cpu():
    assert optimizers.make_optimizer(SmallModel(), Adam()).param_groups[0]["fused"] is True


@pytest.fixture
def _sgd():
    """A user-defined optimizer, registered during a test."""

    @OPTIMIZERS.add("sgd")
    class SGD(OptimizerOptions):
        """SGD with momentum."""

        kind: Literal["sgd"] = "sgd"
        momentum: float = 0.9

        def build(self, groups):
            return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum)

    yield
    OPTIMIZERS.remove("sgd")


SHORT = {"training__steps": 8, "training__validate_every": 4, "training__save_every": 4}


@pytest.mark.usefixtures("_sgd", "own_cache")
def test_an_added_optimizer_trains_and_resumes_exactly(tmp_path):
    recipe = tiny.recipe(tmp_path, **SHORT, optimizer={"kind": "sgd", "momentum": 0.5, "lr": 0.1})
    uninterrupted = train(recipe, folder=tmp_path / "uninterrupted", quiet=True)
    stopped = train(recipe, folder=tmp_path / "stopped", overrides=["training.steps=5"], quiet=True)
    resume(stopped.folder, overrides=["training.steps=8"], quiet=True)
    tensors = tiny.last_tensors(uninterrupted.folder)
    assert any(name.endswith(".momentum_buffer") for name in tensors)
    assert tiny.same_tensors(tensors, tiny.last_tensors(stopped.folder))


@pytest.mark.usefixtures("_sgd", "own_cache")
def test_an_added_optimizer_skips_non_finite_steps(tmp_path):
    recipe = tiny.recipe(
        tmp_path, **{**SHORT, "training__log_every": 4}, optimizer={"kind": "sgd", "lr": 1e30, "clip": None}
    )
    with pytest.raises(RegardError, match="is not finite"):
        train(recipe, folder=tmp_path / "run", quiet=True)


@pytest.mark.usefixtures("_sgd")
def test_keys_of_an_added_optimizer_are_validated():
    recipe = load_recipe({"data": "multi30k", "optimizer": {"kind": "sgd"}}, ["optimizer.momentum=0.8"])
    assert recipe.optimizer.momentum == 0.8
    with pytest.raises(
        RecipeError, match=r"optimizer of kind sgd has no key 'betas' \(adam and adamw have it\)"
    ):
        load_recipe(recipe, ["optimizer.betas=[0.9, 0.99]"])


def test_an_unknown_optimizer_names_the_registered_ones():
    with pytest.raises(RecipeError, match="optimizer.kind is 'sgd', and must be one of adam, adamw"):
        load_recipe({"data": "multi30k", "optimizer": {"kind": "sgd"}})
