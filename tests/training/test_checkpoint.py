"""Checkpoints: their files, restoring into another optimizer state, and removal of old ones."""

import json

import pytest
import torch
from torch import nn

from regard.errors import FolderError, RecipeError
from regard.files.background import Background
from regard.optimization.optimizers import make_optimizer
from regard.recipe.loading import load_recipe
from regard.training import checkpoint
from regard.training.distributed import LossModule, World
from regard.training.run_folder import RunFolder
from regard.training.step import Stepper
from regard.training.trainer_state import TrainerState
from tests.training import tiny

WORLD = World(torch.device("cpu"))


def make_stepper(folder, width=3):
    torch.manual_seed(width)
    recipe, model = load_recipe(tiny.recipe(folder)), nn.Linear(2, width)
    return Stepper(model, LossModule(model), make_optimizer(model, recipe.optimizer), recipe, WORLD)


def update(stepper):
    """One step of the optimizer, which creates its state."""
    for p in stepper.model.parameters():
        p.grad = torch.ones_like(p)
    stepper.optimizer.step()


def values(stepper, step, best=()):
    state = TrainerState(step=step, best=[{"step": s, "loss": 1.0} for s in best])
    return {
        "command": "regard train",
        "recipe": stepper.recipe.model_dump(),
        "trainer_state": state.as_dict(),
        "schedule": {},
        "log_position": 0,
        "batches_per_step": 1,
        "threads": 1,
    }


def save(folder, stepper, step=4):
    path = folder / f"step-{step:08d}"
    path.mkdir()
    checkpoint.collect_state(stepper, {"epoch": 1}, values(stepper, step))(path)
    return path


def test_a_checkpoint_restores_weights_optimizer_and_random_numbers(tmp_path):
    stepper = make_stepper(tmp_path)
    update(stepper)
    path = save(tmp_path, stepper)
    expected, drawn = checkpoint.named_tensors(stepper), torch.rand(3)
    other = make_stepper(tmp_path)
    position = checkpoint.restore(path, checkpoint.read_state(path), other, seed=1)
    assert position == {"epoch": 1} and torch.equal(torch.rand(3), drawn)
    restored = checkpoint.named_tensors(other)
    assert {"model.weight", "optimizer.weight.exp_avg", "optimizer.weight.step"} <= set(restored)
    assert tiny.same_tensors(restored, expected)


def test_the_state_is_copied_when_it_is_collected(tmp_path):
    stepper = make_stepper(tmp_path)
    write = checkpoint.collect_state(stepper, {}, values(stepper, 4))
    before = stepper.model.weight.detach().clone()
    with torch.no_grad():
        stepper.model.weight.zero_()
    (tmp_path / "step-00000004").mkdir()
    write(tmp_path / "step-00000004")
    other = make_stepper(tmp_path)
    checkpoint.restore(
        tmp_path / "step-00000004", checkpoint.read_state(tmp_path / "step-00000004"), other, seed=1
    )
    assert torch.equal(other.model.weight, before)


def test_another_model_or_format_is_refused(tmp_path):
    path = save(tmp_path, make_stepper(tmp_path))
    with pytest.raises((FolderError, RuntimeError)), checkpoint.readable(path):
        checkpoint.restore(path, checkpoint.read_state(path), make_stepper(tmp_path, width=5), seed=1)
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    (path / "state.json").write_text(json.dumps({**state, "format": 99}), encoding="utf-8")
    with pytest.raises(FolderError, match="has format 99"):
        checkpoint.read_state(path)


def test_optimizer_state_must_be_tensors(tmp_path):
    stepper = make_stepper(tmp_path)
    stepper.optimizer.state[stepper.model.weight]["count"] = 3
    with pytest.raises(RecipeError, match="keeps 'count' as int, and checkpoints hold tensors"):
        checkpoint.named_tensors(stepper)


def test_old_checkpoints_and_the_best_models_that_none_refers_to_are_removed(tmp_path):
    run, stepper = RunFolder(tmp_path / "run"), make_stepper(tmp_path)
    background = Background()
    checkpoints = checkpoint.Checkpoints(run, background)
    for step, best in ((1, [1]), (2, [1, 2]), (3, [2]), (4, [4, 2])):
        (run.best / f"step-{step:08d}").mkdir(parents=True)
        checkpoints.save(stepper, {}, values(stepper, step, best))
        background.wait()
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-00000003", "step-00000004"]
    assert sorted(path.name for path in run.best.iterdir()) == ["step-00000002", "step-00000004"]
    checkpoints.open(run.checkpoints / "step-00000003")
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000003"]
    assert [path.name for path in run.best.iterdir()] == ["step-00000002"]
