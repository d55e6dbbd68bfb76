"""Tests of evaluate.py: which data is evaluated, how it is read, and perplexity by plain arithmetic.

Covers evaluators.py.
"""

import math
from types import SimpleNamespace

import pytest
import torch

import regard
from regard.data.datasets import load_split
from regard.data.tokenizer import BOS, EOS, Tokenizer
from regard.errors import DataError, OptionError
from regard.evaluation.evaluate import (
    data_section,
    default_split,
    evaluate,
    evaluation_batches,
    training_cost,
)
from regard.models.build import build
from regard.recipe.loading import load_recipe

CARD = {
    "recipe": {"data": {"corpus": "multi30k", "source": "de", "target": "en", "version": "tok", "test": []}}
}


def test_the_data_is_the_models_corpus_another_corpus_or_files():
    assert data_section(CARD) == CARD["recipe"]["data"]
    assert data_section(CARD, ["multi30k"]) == {
        "corpus": "multi30k",
        "source": "de",
        "target": "en",
        "version": "tok",
    }
    assert data_section(CARD, ["tatoeba-en-de"]) == {
        "corpus": "tatoeba-en-de",
        "source": "de",
        "target": "en",
    }
    assert data_section(CARD, ["a.de", "a.en"]) == {"test": ["a.de", "a.en"], "source": "de", "target": "en"}
    assert data_section(CARD, ["wmt-newstest:newstest2014"])["test"] == ["wmt-newstest:newstest2014"]
    # A recipe that names columns of a table: the languages are those of the card. As the bundled translators.
    columns = {"recipe": {"data": {"train": ["a.tsv"], "source": "1", "target": "2"}}}
    card = {**columns, "languages": {"source": "en", "target": "de"}}
    expected = {"corpus": "wmt-newstest", "source": "en", "target": "de"}
    assert data_section(card, ["wmt-newstest"]) == expected
    assert data_section(card, ["a.tsv"]) == {"test": ["a.tsv"], "source": "1", "target": "2"}
    with pytest.raises(DataError, match="--data"):
        data_section({})


def test_a_model_whose_own_files_are_elsewhere_needs_data(tmp_path):
    """As the bundled translators, whose cards name files of the training machine."""
    with pytest.raises(DataError, match=r"validated on gone\.tsv, which is not here; give .* --data"):
        data_section({"recipe": {"data": {"validation": ["gone.tsv"]}}})
    here = tmp_path / "here.tsv"
    here.write_text("a\tb\n")
    for names in ([str(here)], ["broad-twitter:validation"], [[str(here), str(here)]]):
        data = {"validation": names}
        assert data_section({"recipe": {"data": data}}) == data


def test_the_default_split_is_test_or_else_validation():
    assert default_split({"corpus": "multi30k"}) == "test"
    assert default_split({"corpus": "tiny-shakespeare"}) in ("test", "validation")
    assert default_split({"test": ["a.txt"]}) == "test"


def language_model(mode, tmp_path, monkeypatch, length=8):
    """A language model with random weights; returns it, its test data and the lines of this data."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    text = ["to be or not", "", "to be that is the question"] * 4
    (tmp_path / "t.txt").write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    transformer = {"kind": "transformer", "layers": 1, "heads": 2, "inner": 8, "position": "rotary"}
    decoder = {"kind": "recurrent"} if mode == "stream" else transformer
    changes = {
        "task": "language",
        "data": {"test": [], "train": ["x"], "validation": ["x"]},
        "batch": {"mode": mode, "length": length},
    }
    recipe = load_recipe({**changes, "model": {"dim": 8, "decoder": decoder}})
    tokenizer = Tokenizer.train(text, "word", 40)
    model = build(recipe.model.model_dump(), None, len(tokenizer)).double().eval()
    model.target_tokenizer, model.card = tokenizer, {"recipe": {"batch": recipe.batch.model_dump()}}
    return model, {"test": [str(tmp_path / "t.txt")]}, text


@pytest.mark.parametrize("mode", ["stream", "crops", "lines"])
def test_perplexity_is_the_summed_nll_over_the_batches(mode, tmp_path, monkeypatch):
    model, data, text = language_model(mode, tmp_path, monkeypatch)
    result = evaluate(model, data)
    assert result.language is not None
    lines = [line for line in text if line or mode != "lines"]  # mode "lines" drops empty lines
    rows = [[*model.target_tokenizer.encode(line), EOS] for line in lines]
    assert result.language.tokens == sum(map(len, rows))
    assert result.language.text.words == sum(len(line.split()) + 1 for line in lines)
    if mode == "lines":
        pieces = [([BOS, *row[:-1]], row) for row in rows]
    else:
        flat = [token for row in rows for token in row]
        # A recurrent state is kept between windows; a Transformer sees one window only.
        size = len(flat) if mode == "stream" else 8
        pieces = [([BOS, *flat][i : i + size], flat[i : i + size]) for i in range(0, len(flat), size)]
    if mode != "crops":  # a batch of crops starts at several places of the text, so its windows differ
        nll = 0.0
        with torch.no_grad():
            for inputs, labels in pieces:
                scores = model(torch.tensor([inputs])).log_softmax(-1)[0]
                nll -= float(scores[range(len(labels)), labels].sum())
        assert result.language.nll == pytest.approx(nll, rel=1e-9)
        assert result.language.perplexity == pytest.approx(math.exp(nll / sum(map(len, rows))), rel=1e-9)


def test_every_token_is_predicted_once_with_any_window_length(tmp_path, monkeypatch):
    for length in (2, 5, 8, 100):
        model, data, text = language_model("crops", tmp_path, monkeypatch, length)
        split = load_split(data, "test", None, model.target_tokenizer, "language")
        labels = [
            int(row[1 + i])
            for batch in evaluation_batches(model, split)
            for row, n in zip(batch.target, batch.target_lengths.tolist(), strict=True)
            for i in range(n)
        ]
        assert sorted(labels) == sorted(
            t for line in text for t in [*model.target_tokenizer.encode(line), EOS]
        )


def test_translation_options_are_errors_for_a_language_model(tmp_path, monkeypatch):
    model, data, _ = language_model("lines", tmp_path, monkeypatch)
    with pytest.raises(OptionError, match="translators"):
        evaluate(model, data, lengths=True)


def test_the_training_cost_comes_from_the_card():
    result = SimpleNamespace(data="multi30k", split="test", bleu=30.0)
    results = training_cost({"name": "m", "flops": 1e15, "seconds": 7200, "processes": 2}, result)
    assert results is not None
    assert (results.flops, results.hours, results.devices, results.bleu) == (1e15, 2.0, 2, 30.0)
    continued = {
        "flops": 1e15,
        "seconds": 7200,
        "first": {"flops": 4e14, "seconds": 3600, "first": {"flops": 1e14}},
    }
    results = training_cost(continued, result)
    assert results is not None and (results.flops, results.hours) == (1.5e15, 3.0)
    assert training_cost({}, result) is None


def test_a_translator_is_decoded_with_the_given_length_penalty_or_that_of_its_recipe(tmp_path):
    model = regard.load("tatoeba-en-de-bahdanau")
    model.card = model.card | {"recipe": {"decoding": {"beam": 3, "length_penalty": 0.5}}}
    sources = ["I have not seen the man who lives here.", "What time is it?", "Tom and Mary are my friends."]
    (tmp_path / "x.en").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    (tmp_path / "x.de").write_text("a\nb\nc\n", encoding="utf-8")
    data = {"test": [[str(tmp_path / "x.en"), str(tmp_path / "x.de")]], "source": "en", "target": "de"}
    for given, used in ((None, 0.5), (0.0, 0.0), (3.0, 3.0)):
        result = evaluate(model, data, length_penalty=given)
        expected = regard.translate(sources, model, strategy=regard.Beam(3, length_penalty=used))
        assert result.predictions == [str(text) for text in expected]
        assert result.as_dict()["length_penalty"] == used
