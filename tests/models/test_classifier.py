"""Classifiers with any encoder and pooling: cross-entropy loss, and outputs in the order of the texts."""

import numpy as np
import pytest
import torch

from regard.data.tokenizer import Tokenizer
from regard.errors import FolderError, OptionError
from regard.models.classifier import ClassifierEnsemble, ClassifierOptions, label_loss, predict
from regard.models.folder import load, save
from regard.recipe.loading import build
from tests.evaluation.explanation import small_models
from tests.models.small import batch_of

TEXTS = ["a good film", "a bad film", "not at all good", "fine", "", "unknown words here and there"]
LABELS = ["no", "perhaps", "yes"]
LAYER = {"layers": 1, "heads": 2, "inner": 16}
ENCODERS = {
    "embedding": {"kind": "embedding"},
    "text-cnn": {"kind": "text-cnn", "width": 5, "kernels": [2, 3]},
    "convolutional": {"kind": "convolutional", "layers": 1},
    "recurrent": {"kind": "recurrent", "cell": "lstm"},
    "transformer": {"kind": "transformer", **LAYER},
    "stacked": {"kind": "stacked", "above": LAYER},
}
POOLINGS = [
    "mean",
    "sum",
    "max",
    "last",
    {"kind": "recurrent"},
    {"kind": "attention", "queries": 2},
    {"kind": "concat", "of": ["mean", "max"]},
]


def options(encoder, pooling):
    return {
        "kind": "classifier", "dim": 12, "dropout": 0.0, "encoder": ENCODERS[encoder], "pooling": pooling
    }  # fmt: skip


def make(encoder="text-cnn", pooling: object = "max", **more):
    source = Tokenizer.train(TEXTS[:4], "word", 50)
    target = Tokenizer.labels(LABELS)
    model = build({**options(encoder, pooling), **more}, len(source), len(target)).eval()
    model.source_tokenizer, model.target_tokenizer = source, target
    return model


@pytest.mark.parametrize("encoder", ENCODERS)
def test_batches_and_padding_change_nothing_and_order_is_kept(encoder):
    model = make(encoder, {"kind": "attention"}).double()
    labels, batched = predict(model, TEXTS)
    for row, text in enumerate(TEXTS):
        (label,), single = predict(model, [text])
        np.testing.assert_allclose(batched[row], single[0], rtol=1e-6)
        assert label == labels[row] == LABELS[batched[row].argmax()]
    np.testing.assert_allclose(batched.sum(-1), 1, rtol=1e-6)
    one_by_one = predict(model, TEXTS, batch_tokens=1)[1]
    np.testing.assert_allclose(one_by_one, batched, rtol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_every_pooling_has_gradients_for_all_parameters(pooling):
    model = make("embedding", pooling, head={"layers": 1, "width": 8}).train()
    loss = model.loss(batch(model))
    loss.total.backward()
    assert loss.tokens == 3 and all(
        p.grad is not None and p.grad.isfinite().all() for p in model.parameters()
    )


def batch(model):
    sources = model.source_tokenizer.encode_batch(TEXTS[:3])
    return batch_of(sources, [[6], [4], [5]])  # yes, no, perhaps


def test_the_loss_is_cross_entropy_of_the_label():
    model = make().double()
    inputs = batch(model)
    scores = model(inputs.source, inputs.source_lengths)
    for smoothing in (0.0, 0.1):
        expected = torch.nn.functional.cross_entropy(
            scores, torch.tensor([2, 0, 1]), reduction="sum", label_smoothing=smoothing
        )
        result = model.loss(inputs, smoothing)
        torch.testing.assert_close(result.total, expected)
    torch.testing.assert_close(model.loss(inputs, 0.1).nll, model.loss(inputs).total.detach())


def test_agreement_adds_half_the_mean_divergence_of_two_passes():
    torch.manual_seed(1)
    one, other = torch.randn(2, 4, 3, dtype=torch.float64).unbind()
    labels = torch.tensor([0, 2, 1, 1])
    p, q = one.softmax(-1), other.softmax(-1)
    divergence = ((p * (p.log() - q.log())).sum() + (q * (q.log() - p.log())).sum()) / 2
    mean = (label_loss(one, labels).total + label_loss(other, labels).total) / 2
    result = label_loss(torch.cat([one, other]), labels, agreement=3.0)
    torch.testing.assert_close(result.total, mean + 3.0 / 2 * divergence)
    same = label_loss(torch.cat([one, one]), labels, agreement=3.0)
    torch.testing.assert_close(same.total, label_loss(one, labels).total)


@pytest.mark.parametrize(("smoothing", "agreement"), [(0.0, 0.0), (0.1, 0.0), (0.1, 3.0)])
def test_a_batch_without_texts_has_zero_loss(smoothing, agreement):
    scores = torch.randn(0, 3, requires_grad=True)
    result = label_loss(scores, torch.zeros(0, dtype=torch.long), smoothing, agreement)
    assert (float(result.total.detach()), float(result.nll), result.tokens) == (0.0, 0.0, 0)
    result.total.backward()
    assert scores.grad is not None and scores.grad.shape == (0, 3)


def test_word_dropout_replaces_tokens_by_unk_in_training_only():
    model = make("embedding", "mean", word_dropout=0.5)
    tokens = torch.tensor([[5, 6, 7, 3]]).repeat(200, 1)
    assert model(tokens).var(0).max() < 1e-10
    model.train()
    states = model.encode(tokens).states
    unknown = (states == model.source.table.weight[1]).all(-1).float().mean(0)
    assert unknown[3] == 0 and (unknown[:3] - 0.5).abs().max() < 0.15


def test_a_saved_classifier_gives_the_same_scores(tmp_path):
    model = make("transformer", {"kind": "attention"})
    config = ClassifierOptions.model_validate(options("transformer", {"kind": "attention"})).model_dump()
    tokenizers = model.source_tokenizer, model.target_tokenizer
    save(tmp_path / "m", model, config, *tokenizers, {"task": "classify"})
    loaded = load(tmp_path / "m")
    assert loaded.kind == "classifier" and loaded.labels == tuple(LABELS)
    np.testing.assert_allclose(predict(loaded, TEXTS)[1], predict(model, TEXTS)[1], rtol=1e-5)
    text = (tmp_path / "m" / "config.json").read_text(encoding="utf-8")
    (tmp_path / "m" / "config.json").write_text(
        text.replace('"kind": "classifier",\n  "source', '"kind": "oracle",\n  "source')
    )
    with pytest.raises(FolderError, match="is a 'oracle' .* which this regard does not know"):
        load(tmp_path / "m")


def test_flops_grow_with_the_text_and_parameters_are_counted_by_part():
    model = make("text-cnn")
    assert model.flops(20, 2) > model.flops(10, 2) == model.flops(10, 7)
    assert set(model.parameters_by_part()) == {"source", "encoder", "head"}


def test_an_ensemble_has_the_mean_of_the_probabilities():
    torch.manual_seed(1)
    first, second = make("text-cnn"), make("recurrent", "mean")
    labels, probabilities = predict(ClassifierEnsemble([first, second]), TEXTS)
    expected = (predict(first, TEXTS)[1] + predict(second, TEXTS)[1]) / 2
    np.testing.assert_allclose(probabilities, expected, rtol=1e-6)
    assert labels == [first.labels[best] for best in expected.argmax(-1)]
    assert (predict(ClassifierEnsemble([first]), TEXTS)[1] == predict(first, TEXTS)[1]).all()


def test_models_that_make_no_ensemble_are_errors_of_one_sentence():
    model, other = make(), make()
    other.target_tokenizer = Tokenizer.labels(["no", "perhaps", "certainly"])
    with pytest.raises(OptionError, match="model 1 and model 2 of the ensemble have different labels, such"):
        ClassifierEnsemble([model, other])
    with pytest.raises(OptionError, match="an ensemble needs at least one model"):
        ClassifierEnsemble([])
    with pytest.raises(OptionError, match="model 2 of the ensemble is not a classifier"):
        ClassifierEnsemble([model, "runs/sst2"])  # pyright: ignore[reportArgumentType]
    frames = small_models.frame_classifier(labels=tuple(LABELS))
    with pytest.raises(OptionError, match="read different inputs, text and sequences of numbers"):
        ClassifierEnsemble([model, frames])
