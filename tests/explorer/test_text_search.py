"""Tests of text_search.py and run_job.py: a search from a forced prefix, and its tree."""

import math

import pytest
import torch

import regard
from regard.data.tokenizer import BOS, EOS
from regard.errors import OptionError
from regard.explorer.explored_model import ExploredModel
from regard.explorer.run_job import Job
from regard.explorer.text_search import search_tree
from tests.models.multilingual import multilingual
from tests.serving.server import write_model

TEXT = "ein kleiner Hund"


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    torch.manual_seed(3)
    return write_model(tmp_path_factory.mktemp("translator"))


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    torch.manual_seed(3)
    return write_model(tmp_path_factory.mktemp("language"), encoder=None)


def test_the_tree_holds_the_hypotheses_of_the_beam(translator):
    tree = search_tree(translator, Job(TEXT, beam=3))
    expected = regard.translate(TEXT, translator, beam=3, nbest=3)
    assert [h["text"] for h in tree["hypotheses"]] == [h.text for h in expected.hypotheses]
    nodes = tree["nodes"]
    for shown, hypothesis in zip(tree["hypotheses"], expected.hypotheses, strict=True):
        path = [nodes[i] for i in shown["nodes"]]
        assert [node["id"] for node in path] == hypothesis.all_tokens
        assert [node["parent"] for node in path] == [0, *shown["nodes"][:-1]]
        assert path[-1]["score"] == pytest.approx(shown["score"])
    ended = {"ended"} if any(hypothesis.ended for hypothesis in expected.hypotheses) else set()
    assert {node["status"] for node in nodes} == {"kept", "pruned"} | ended


@pytest.mark.parametrize("kind", ["translator", "language_model"])
def test_a_pruned_token_can_be_forced_and_decoding_continues(kind, request):
    model = request.getfixturevalue(kind)
    tree = search_tree(model, Job(TEXT))
    step = next(n for n in tree["nodes"] if n["step"] == 3 and n["status"] == "pruned" and n["id"] != EOS)
    prefix, parent = [step["id"]], step["parent"]
    while parent:
        prefix, parent = [tree["nodes"][parent]["id"], *prefix], tree["nodes"][parent]["parent"]
    forced = search_tree(model, Job(TEXT, beam=2, prefix=tuple(prefix)))
    chain = [n for n in forced["nodes"] if 0 < n["step"] <= 3]
    assert [n["id"] for n in chain] == prefix and forced["prefix"] == prefix
    assert chain[-1]["logP"] == pytest.approx(step["logP"])
    run = ExploredModel(model, "small").run(Job(TEXT, beam=2, prefix=tuple(prefix)))
    assert run.output["text"] == forced["hypotheses"][0]["text"]
    assert run.output["forced"] == model.target_tokenizer.decode(prefix)
    first = run.private.get("prompt", 0)
    assert run.private["target"][first : first + 3] == prefix
    assert run.output["logP"] == pytest.approx(forced["hypotheses"][0]["logP"])


def test_typed_text_is_forced_after_the_prefix(translator):
    tree = search_tree(translator, Job(TEXT, prefix=tuple(translator.target_tokenizer.encode("Ü"))), "be")
    assert tree["hypotheses"][0]["text"].replace(" ", "").startswith("Übe")
    assert tree["prefix"] == [
        *translator.target_tokenizer.encode("Ü"),
        *translator.target_tokenizer.encode("be"),
    ]


def test_the_end_can_be_forced(translator):
    prefix = (*translator.target_tokenizer.encode("Hund"), EOS)
    (only,) = search_tree(translator, Job(TEXT, beam=2, prefix=prefix))["hypotheses"]
    assert only["text"] == "Hund" and only["ended"] and math.isfinite(only["logP"])


def test_tokens_that_cannot_be_forced_are_errors_of_one_sentence(translator, language_model):
    for prefix in ((BOS,), (-1,), (10_000,), (EOS, 5)):
        with pytest.raises(OptionError, match="forced"):
            search_tree(translator, Job(TEXT, prefix=prefix))
    with pytest.raises(OptionError, match="not in the vocabulary"):
        search_tree(translator, Job(TEXT), "日本")
    with pytest.raises(OptionError, match="no search"):
        search_tree(object(), Job(TEXT))


@pytest.mark.parametrize(
    ("text", "to", "token"),
    [
        ("Where is the station?", None, ">>de<<"),  # the first example of the page, with the language on auto
        ("Where is the station?", "fr", ">>fr<<"),
        ("Wo ist der Bahnhof?", None, ">>en<<"),
        (">>fr<< Where is he?", None, ">>fr<<"),
        ("12", None, ">>de<<"),
    ],
)
def test_a_multilingual_model_has_a_target_for_every_text(text, to, token, tmp_path):
    model = ExploredModel(regard.load(multilingual(tmp_path / "model")), "several")
    run = model.run(Job(text, to))
    assert run.sides["source"].tokens[0] == token
    assert run.output["text"] == regard.translate(text, model.model, None if ">>" in text else token[2:4])


@pytest.mark.parametrize(
    ("alignment", "layer"), [({"layer": 0}, 0), ({"layer": 0, "shift": True}, None), (None, None)]
)
def test_the_alignment_view_begins_with_the_layer_of_the_card(alignment, layer, translator, monkeypatch):
    monkeypatch.setattr(translator, "card", {"alignment": alignment}, raising=False)
    assert ExploredModel(translator, "model").describe()["alignment"] == layer
