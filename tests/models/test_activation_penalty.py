"""Tests of activation_penalty.py: the penalties in the loss of a recurrent language model."""

import pytest
import torch
from torch.nn.functional import log_softmax

from regard.data.batch import Batch
from regard.data.tokenizer import PAD
from regard.models.activation_penalty import ActivationPenalty
from regard.recipe.loading import load_recipe
from regard.training.distributed import LossModule, World
from regard.training.step import Stepper
from regard.training.step_iterator import StepBatches
from tests.models.small import make, make_batch

AWD = {"dropout_input": 0.4, "dropout_hidden": 0.2, "dropout_output": 0.5, "dropout_weight": 0.3}
LSTM = {"kind": "recurrent", "cell": "lstm", "layers": 2, "last_width": 16}
PENALTIES = {"activation_penalty": 2.0, "temporal_penalty": 1.0}


def language_model(**decoder):
    torch.manual_seed(1)
    return make(None, {**LSTM, **decoder}, tie="none")


def windows(rows, length, seed=0):
    """A batch without padding, as a stream has them."""
    torch.manual_seed(seed)
    target = torch.randint(4, 20, (rows, length + 1))
    return Batch(target=target, target_lengths=torch.full((rows,), length), rows=torch.arange(rows))


def passes(model, batch):
    """Outputs of the last layer before and after dropout, with the operations of the model in its order."""
    embedded = model.target(batch.target[:, :-1])
    outputs, _ = model.decoder.stack(model.decoder.input_dropout(embedded))
    return outputs, model.decoder.output_dropout(outputs)


def mean(values):
    return torch.stack(values).mean()


def by_hand(model, batch, alpha=2.0, beta=1.0):
    """Σ −log p + tokens · (α mean(dropped²) + β mean((outputs[t+1] − outputs[t])²)), row by row."""
    outputs, dropped = passes(model, batch)
    log_p, labels = log_softmax(model.output(dropped), -1), batch.target[:, 1:]
    nll, squares, changes = [], [], []
    for i, row in enumerate(labels):
        n = int((row != PAD).sum())
        nll += [-log_p[i, t, row[t]] for t in range(n)]
        squares += [(dropped[i, t] ** 2).mean() for t in range(n)]
        changes += [((outputs[i, t + 1] - outputs[i, t]) ** 2).mean() for t in range(n - 1)]
    return torch.stack(nll).sum() + len(nll) * (alpha * mean(squares) + beta * mean(changes))


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("dropouts", [{}, AWD, {**AWD, "embedding_dropout": 0.2}])
@pytest.mark.parametrize("padded", [False, True])
def test_the_loss_and_its_gradients_are_those_of_the_formula(dropouts, padded):
    model, batch = language_model(**PENALTIES, **dropouts), make_batch() if padded else windows(3, 6)
    torch.manual_seed(5)
    loss = model.loss(batch)
    torch.manual_seed(5)
    expected = by_hand(model, batch)
    torch.testing.assert_close(loss.total, expected)
    assert loss.nll < loss.total
    for own, theirs in zip(gradients(model, loss.total), gradients(model, expected), strict=True):
        torch.testing.assert_close(own, theirs)


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (0.0, 1.0)])
def test_each_penalty_works_alone(alpha, beta):
    model = language_model(activation_penalty=alpha, temporal_penalty=beta, **AWD)
    torch.manual_seed(5)
    total = model.loss(windows(3, 6, seed=5)).total
    torch.manual_seed(5)
    torch.testing.assert_close(total, by_hand(model, windows(3, 6, seed=5), alpha, beta))


def test_windows_without_padding_have_the_plain_means_of_the_paper():
    model, batch = language_model(**PENALTIES, **AWD), windows(4, 5)
    torch.manual_seed(2)
    loss = model.loss(batch)
    torch.manual_seed(2)
    raw, dropped = passes(model, batch)
    assert not torch.equal(raw, dropped)
    penalty = 2 * dropped.pow(2).mean() + (raw[:, 1:] - raw[:, :-1]).pow(2).mean()
    torch.testing.assert_close((loss.total - loss.nll) / 20, penalty)


def test_the_decoder_runs_once(monkeypatch):
    model, batch = language_model(**PENALTIES), windows(3, 6)
    calls = []
    forward = model.decoder.stack.forward
    monkeypatch.setattr(model.decoder.stack, "forward", lambda *x: calls.append(1) or forward(*x))
    model.loss(batch).total.backward()
    assert len(calls) == 1


def test_evaluation_has_no_penalty_and_the_state_is_returned():
    model, batch = language_model(**PENALTIES, **AWD), windows(3, 6)
    without = language_model()
    training = model.loss(batch)
    assert training.total > training.nll and training.state.hidden[0][0].shape == (3, 32)
    loss, expected = model.eval().loss(batch), without.eval().loss(batch)
    assert loss.total == loss.nll == expected.total


def test_a_window_of_one_token_and_a_batch_of_padding_have_no_temporal_penalty():
    penalty = ActivationPenalty(0.0, 1.0)
    x = torch.ones(2, 1, 3)
    assert penalty.mean(x, x, torch.ones(2, 1, dtype=torch.bool)) == 0
    x = torch.randn(2, 4, 3)
    assert penalty.mean(x, x, torch.zeros(2, 4, dtype=torch.bool)) == 0


def test_with_agreement_the_penalty_is_the_mean_over_both_passes():
    model, batch = language_model(**PENALTIES), make_batch()  # no dropout: both passes are equal
    torch.testing.assert_close(model.loss(batch, agreement=1.0).total, model.loss(batch).total)


def test_under_bfloat16_the_penalty_is_computed_in_float32():
    model, batch = language_model(**PENALTIES, **AWD).float(), windows(8, 16)
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(batch)
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16):
        raw, dropped = passes(model, batch)
    assert raw.dtype == torch.bfloat16
    raw, dropped = raw.double(), dropped.double()
    penalty = 2 * dropped.pow(2).mean() + (raw[:, 1:] - raw[:, :-1]).pow(2).mean()
    x = torch.zeros(1, 2, 3, dtype=torch.bfloat16)
    inside = torch.ones(1, 2, dtype=torch.bool)
    assert loss.total.dtype == ActivationPenalty(1, 1).mean(x, x, inside).dtype == torch.float32
    torch.testing.assert_close((loss.total - loss.nll).double() / 128, penalty, rtol=1e-3, atol=0)
    loss.total.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


def step_gradient(model, batches):
    """The gradient of a step of the trainer over these batches, before the update."""
    recipe = load_recipe(
        {
            "task": "language",
            "data": {"train": ["a"], "validation": ["b"]},
            "model": {"decoder": {"kind": "recurrent"}},
            "optimizer": {"clip": None},
            "training": {"smoothing": 0.0},
        }
    )
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), "lr_factor": 1.0}], lr=0.0)
    found = []
    optimizer.register_step_pre_hook(lambda *_: found.extend(p.grad.clone() for p in model.parameters()))
    stepper = Stepper(model, LossModule(model), optimizer, recipe, World(torch.device("cpu")))
    tokens = sum(batch.tokens for batch in batches)
    stepper.step(1, StepBatches(batches, tokens, 0, sum(map(len, batches)), 0), 0.0)
    return found


def test_accumulated_batches_give_the_mean_over_the_step():
    model, batch = language_model(**PENALTIES), windows(6, 5)
    parts = [
        Batch(target=batch.target[rows], target_lengths=batch.target_lengths[rows], rows=batch.rows[rows])
        for rows in (slice(0, 4), slice(4, 6))
    ]
    for own, expected in zip(step_gradient(model, parts), step_gradient(model, [batch]), strict=True):
        torch.testing.assert_close(own, expected)


def test_batches_of_unequal_length_count_by_their_tokens():
    model, batches = language_model(**PENALTIES), [windows(2, 9), windows(3, 4, seed=1)]
    expected = gradients(model, sum(by_hand(model, batch) for batch in batches) / (2 * 9 + 3 * 4))
    for own, theirs in zip(step_gradient(model, batches), expected, strict=True):
        torch.testing.assert_close(own, theirs)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_the_fused_loss_has_the_same_penalty():
    torch.manual_seed(1)
    model, batch = make(None, {**LSTM, **PENALTIES}, vocab=2000, tie="none"), windows(8, 16)
    expected = model.loss(batch)
    with torch.autocast("cuda", torch.bfloat16):
        loss = model.float().cuda().loss(batch.to(torch.device("cuda")))
    penalties = [((x.total - x.nll) / 128).item() for x in (loss, expected)]
    assert penalties[0] == pytest.approx(penalties[1], rel=0.02)
    loss.total.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
