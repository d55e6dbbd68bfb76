"""One step: the gradient of the mean over all tokens, non-finite steps, stream state."""

import pytest
import torch
from torch import nn

from regard.data.batch import Batch
from regard.models.chunked_loss import Loss
from regard.optimization.optimizers import make_optimizer
from regard.recipe.loading import load_recipe
from regard.training.distributed import LossModule, World
from regard.training.ema import Ema
from regard.training.step import Stepper
from regard.training.step_iterator import StepBatches
from tests.training import tiny

WORLD = World(torch.device("cpu"))


class SquaredTokens(nn.Module):
    """loss = Σ (w · t)² over the tokens t of a batch: its gradient is known."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0))

    def loss(self, batch, smoothing=0.0, state=None, *rest):
        labels = batch.target[:, 1:].float()
        total = (self.w * labels).square().sum()
        return Loss(total, total.detach(), batch.tokens)


def batch(*labels):
    target = torch.tensor([[0, *labels]])
    return Batch(target, torch.tensor([len(labels)]), torch.tensor([labels[0]]))


def step_of(*batches):
    return StepBatches(list(batches), sum(b.tokens for b in batches), 0, len(batches), 0)


@pytest.fixture
def stepper(tmp_path):
    recipe = load_recipe(tiny.recipe(tmp_path, optimizer__clip=None))
    model = SquaredTokens()
    return Stepper(
        model, LossModule(model), make_optimizer(model, recipe.optimizer), recipe, WORLD, Ema(model, 0.5)
    )


def test_the_gradient_is_that_of_the_mean_over_all_tokens(stepper):
    stepper.step(1, step_of(batch(1, 2, 3), batch(4)), 0.1)
    assert float(stepper.norm) == pytest.approx(2 * (1 + 4 + 9 + 16) / 4)
    assert stepper.loss_sums.tolist() == [30.0, 30.0] and stepper.check() is None


def test_the_moving_average_is_updated_after_the_step(stepper):
    before = stepper.model.w.item()
    stepper.step(1, step_of(batch(1)), 0.1)
    after = stepper.model.w.item()
    assert after == pytest.approx(before - 0.1, rel=1e-4)
    d = min(0.5, 2 / 11)
    assert float(stepper.ema.averages[0]) == pytest.approx(d * before + (1 - d) * after)


def test_after_a_non_finite_step_nothing_changes_and_check_returns_it(stepper):
    stepper.step(1, step_of(batch(1)), 0.1)
    huge = Batch(torch.full((1, 2), 2**62), torch.tensor([1]), torch.tensor([77]))
    with torch.no_grad():
        stepper.model.w.fill_(1e30)
    stepper.step(2, step_of(batch(2), huge), 0.1)
    stepper.step(3, step_of(batch(3)), 0.1)
    assert stepper.model.w.item() == pytest.approx(1e30)
    non_finite = stepper.check()
    assert non_finite.step == 2 and [int(b.rows[0]) for b in non_finite.batches] == [2, 77]
    assert stepper.check() is None  # reported once


def test_a_stream_keeps_its_state_from_batch_to_batch(tmp_path):
    from regard.models.memory import DecoderState

    states = []

    class Stream(SquaredTokens):
        def loss(self, batch, smoothing=0.0, state=None, *rest):
            states.append(None if state is None else float(state.hidden[0][0]))
            result = super().loss(batch, smoothing, state, *rest)
            result.state = DecoderState(hidden=[((self.w * float(batch.target[0, 1])).reshape(1, 1),)])
            return result

    recipe = load_recipe(
        {**tiny.recipe(tmp_path), "task": "language", "data": {"train": ["a"], "validation": ["b"]},
         "model": {"decoder": {"kind": "recurrent"}}, "batch": {"mode": "stream", "accumulate": 2}}
    )  # fmt: skip
    model = Stream()
    stepper = Stepper(model, LossModule(model), make_optimizer(model, recipe.optimizer), recipe, WORLD)
    continued = lambda n: Batch(torch.tensor([[0, n]]), torch.tensor([1]), torch.tensor([n]), continues=True)  # noqa: E731
    stepper.step(1, step_of(batch(5), continued(6)), 1e-9)
    stepper.step(2, step_of(continued(7), batch(8)), 1e-9)
    assert states == [None, pytest.approx(5.0), pytest.approx(6.0), None]
    assert not stepper.stream_state.hidden[0][0].requires_grad
