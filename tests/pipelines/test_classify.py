"""Labels from Python: order kept, batches change nothing, and the weights shown are those the model used."""

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
from tests.decoding.folders import classifier, translator

TEXTS = ["a fine day", "", "b", "not at all", "   ", "good good good, and then some more of it", "a fine day"]
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "inner": 32}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(classifier(tmp_path_factory.mktemp("models") / "classifier"))


def test_each_text_gets_its_likeliest_label_and_all_probabilities(model):
    found = classify(TEXTS, model)
    assert [bool(label) for label in found] == [True, False, True, True, False, True, True]
    labels, probabilities = predict(model, TEXTS)
    for label, expected, row, text in zip(found, labels, probabilities, TEXTS, strict=True):
        if text.strip():
            assert label == expected == model.labels[int(np.argmax(row))]
            assert label.probability == row.max()
            assert list(label.probabilities) == [model.labels[i] for i in np.argsort(-row)]
            assert sum(label.probabilities.values()) == pytest.approx(1, abs=1e-6)
        else:
            assert (label, label.probability, label.probabilities) == ("", None, {})
    assert classify([], model) == []


def test_texts_read_together_are_labelled_as_each_alone(model):
    alone = [classify([text], model)[0] for text in TEXTS]
    for batch_tokens in (1, 30, 8192):
        for one, other in zip(alone, classify(TEXTS, model, batch_tokens=batch_tokens), strict=True):
            assert one == other
            assert one.probabilities == pytest.approx(other.probabilities, abs=1e-6)


def test_below_the_threshold_there_is_no_label_and_the_probabilities_stay(model):
    sure = [found.probability for found in classify(TEXTS, model) if found]
    between = (min(sure) + max(sure)) / 2
    found = [each for each in classify(TEXTS, model, threshold=between) if each.probabilities]
    assert [each != "" for each in found] == [p >= between for p in sure]
    assert {bool(each) for each in found} == {True, False}
    assert [each.probability for each in found] == sure


def test_the_weights_of_attention_pooling_are_those_it_took(model):
    text = "a fine day"
    (looked,) = word_attention([text], model)
    ids = torch.tensor([[*model.source_tokenizer.encode(text), EOS]])
    with watch(model) as seen:
        model(ids)
    weights = seen["pooling.attention.cross"].weights()[0].mean((0, 1))
    assert looked.words == ["a", "fine", "day"]
    # A space is a piece of the word that follows it.
    by_hand = [weights[0:1].sum(), weights[1:6].sum(), weights[6:10].sum()]
    assert looked.weights == pytest.approx([float(w) for w in by_hand], abs=1e-6)
    assert sum(looked.weights) == pytest.approx(
        1 - float(weights[10]), abs=1e-6
    )  # the rest went to the end mark


def test_without_attention_pooling_the_last_layer_tells_and_padding_gets_nothing(tmp_path):
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


def test_several_queries_and_heads_are_averaged_and_a_mixture_has_its_attention_shown(tmp_path):
    pooling = {"kind": "concat", "of": ["max", {"kind": "attention", "queries": 3, "heads": 2}]}
    model = load(classifier(tmp_path / "m", pooling=pooling))
    (looked,) = word_attention(["a fine day"], model)
    with watch(model) as seen:
        model(torch.tensor([[*model.source_tokenizer.encode("a fine day"), EOS]]))
    (name,) = list(seen)
    assert seen[name].weights().shape[1:3] == (2, 3)
    assert sum(looked.weights) == pytest.approx(1 - float(seen[name].weights()[0, :, :, -1].mean()), abs=1e-6)


def test_a_model_without_attention_says_so(tmp_path):
    model = load(classifier(tmp_path / "m", encoder="kim", pooling="max"))
    assert classify(["a"], model)[0]
    with pytest.raises(OptionError, match="this model has no attention"):
        word_attention(["a"], model)


@pytest.mark.parametrize("position", ["learned", "learned-norm"])
def test_a_text_beyond_the_table_of_positions_is_labelled_by_its_beginning(tmp_path, position):
    encoder = {**TRANSFORMER, "position": position, "max_positions": 6}
    model = load(classifier(tmp_path / "m", encoder=encoder, pooling="mean"))
    assert truncate(model, ["abcdefgh", "abcde", "abcdef", ""]) == ["abcde", "abcde", "abcde", ""]
    long, short = classify(["abcdefgh", "abcde"], model)
    assert long.probabilities == short.probabilities
    assert word_attention(["abcdefgh"], model)[0].words == ["abcde"]


def test_the_model_is_left_in_the_mode_it_was_in(model):
    model.train()
    classify(["a"], model)
    word_attention(["a"], model)
    assert model.training
    model.eval()


@pytest.mark.parametrize(
    ("texts", "options", "says"),
    [
        (["a", None], {}, "got None among them"),
        (["a"], {"threshold": 2}, "threshold must be a finite number of at least 0 and at most 1, got 2"),
        (["a"], {"batch_tokens": 0}, "batch_tokens must be an integer of at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_one_sentence(model, texts, options, says):
    with pytest.raises(OptionError, match=says):
        classify(texts, model, **options)


def test_another_model_is_refused(tmp_path):
    with pytest.raises(OptionError, match="takes a classifier"):
        module.classify(["a"], load(translator(tmp_path / "t")))
