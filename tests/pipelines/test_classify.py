"""Tests of classify.py; classify_file.py is tested by tests/cli/test_classify.py."""

import numpy as np
import pytest
import torch

import regard.pipelines.classify as module
from regard.attention.watching import watch
from regard.data.tokenizer import EOS
from regard.errors import OptionError
from regard.models.classifier import predict
from regard.models.folder import load
from regard.pipelines.classify import classify, truncate, word_attention
from tests.decoding.model_folders import classifier, translator

TEXTS = ["a fine day", "", "b", "not at all", "   ", "good good good, and then some more of it", "a fine day"]
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 32}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(classifier(tmp_path_factory.mktemp("models") / "classifier"))


def test_each_text_gets_its_most_likely_label_and_all_probabilities(model):
    result = classify(TEXTS, model)
    assert [bool(label) for label in result] == [True, False, True, True, False, True, True]
    labels, probabilities = predict(model, TEXTS)
    for label, expected, row, text in zip(result, labels, probabilities, TEXTS, strict=True):
        if text.strip():
            assert label == expected == model.labels[int(np.argmax(row))]
            assert label.probability == row.max()
            assert list(label.probabilities) == [model.labels[i] for i in np.argsort(-row)]
            assert sum(label.probabilities.values()) == pytest.approx(1, abs=1e-6)
        else:
            assert (label, label.probability, label.probabilities) == ("", None, {})
    assert classify([], model) == []


def test_batching_changes_no_label(model):
    alone = [classify([text], model)[0] for text in TEXTS]
    for batch_tokens in (1, 30, 8192):
        for one, other in zip(alone, classify(TEXTS, model, batch_tokens=batch_tokens), strict=True):
            assert one == other
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)


def test_below_the_threshold_there_is_no_label_and_the_probabilities_stay(model):
    sure = [labels.probability for labels in classify(TEXTS, model) if labels]
    between = (min(sure) + max(sure)) / 2
    labels = [item for item in classify(TEXTS, model, threshold=between) if item.probabilities]
    assert [item != "" for item in labels] == [p >= between for p in sure]
    assert {bool(item) for item in labels} == {True, False}
    assert [item.probability for item in labels] == sure


def test_word_attention_is_that_of_attention_pooling(model):
    text = "a fine day"
    (attended,) = word_attention([text], model)
    ids = torch.tensor([[*model.source_tokenizer.encode(text), EOS]])
    with watch(model) as seen:
        model(ids)
    weights = seen["pooling.attention.cross"].weights()[0].mean((0, 1))
    assert attended.words == ["a", "fine", "day"]
    # A space belongs to the following word.
    by_hand = [weights[0:1].sum(), weights[1:6].sum(), weights[6:10].sum()]
    assert attended.weights == pytest.approx([float(w) for w in by_hand], abs=1e-6)
    assert sum(attended.weights) == pytest.approx(
        1 - float(weights[10]), abs=1e-6
    )  # the remaining weight is on the end-of-sentence token


def test_without_attention_pooling_word_attention_is_that_of_the_last_layer(tmp_path):
    model = load(classifier(tmp_path / "m", encoder=TRANSFORMER, pooling="mean"))
    texts = ["a fine day", "b", "quite a long text about a day", ""]
    together, alone = word_attention(texts, model), [word_attention([text], model)[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one.words == other.words
        assert one.weights == pytest.approx(other.weights, abs=1e-6)
    ids = torch.tensor([[*model.source_tokenizer.encode(texts[0]), EOS]])
    with watch(model) as seen:
        model(ids)
    last = seen["encoder.layers.1.attention.self"].weights()[0].mean((0, 1))
    assert sum(together[0].weights) == pytest.approx(1 - float(last[-1]), abs=1e-6)


def test_queries_and_heads_are_averaged_also_in_concatenated_poolings(tmp_path):
    pooling = {"kind": "concat", "of": ["max", {"kind": "attention", "queries": 3, "heads": 2}]}
    model = load(classifier(tmp_path / "m", pooling=pooling))
    (attended,) = word_attention(["a fine day"], model)
    with watch(model) as seen:
        model(torch.tensor([[*model.source_tokenizer.encode("a fine day"), EOS]]))
    (name,) = list(seen)
    assert seen[name].weights().shape[1:3] == (2, 3)
    assert sum(attended.weights) == pytest.approx(
        1 - float(seen[name].weights()[0, :, :, -1].mean()), abs=1e-6
    )


def test_a_model_without_attention_is_an_error(tmp_path):
    model = load(classifier(tmp_path / "m", encoder="text-cnn", pooling="max"))
    assert classify(["a"], model)[0]
    with pytest.raises(OptionError, match="this model has no attention"):
        word_attention(["a"], model)


@pytest.mark.parametrize("position", ["learned", "learned-norm"])
def test_a_text_beyond_the_positions_is_truncated(tmp_path, position):
    encoder = {**TRANSFORMER, "position": position, "max_positions": 6}
    model = load(classifier(tmp_path / "m", encoder=encoder, pooling="mean"))
    assert truncate(model, ["abcdefgh", "abcde", "abcdef", ""]) == ["abcde", "abcde", "abcde", ""]
    long, short = classify(["abcdefgh", "abcde"], model)
    assert long.probabilities == short.probabilities
    assert word_attention(["abcdefgh"], model)[0].words == ["abcde"]


def test_the_training_mode_of_the_model_is_unchanged(model):
    model.train()
    classify(["a"], model)
    word_attention(["a"], model)
    assert model.training
    model.eval()


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["a", None], {}, "got None among them"),
        (["a"], {"threshold": 2}, "threshold must be a finite number of at least 0 and at most 1, got 2"),
        (["a"], {"batch_tokens": 0}, "batch_tokens must be an integer of at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_errors_in_one_sentence(model, texts, options, message):
    with pytest.raises(OptionError, match=message):
        classify(texts, model, **options)


def test_another_kind_of_model_is_an_error(tmp_path):
    with pytest.raises(OptionError, match="takes a classifier"):
        module.classify(["a"], load(translator(tmp_path / "t")))
