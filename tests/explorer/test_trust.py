"""Tests of trust.py: figures of one output as those of `faithfulness`, and what their sentences say."""

import math

import pytest
import torch

from regard.evaluation.explanation.explained_models import explained_model
from regard.evaluation.explanation.measures import MEASURES
from regard.evaluation.explanation.probe import Probe
from regard.explorer.explored_model import ExploredModel
from regard.explorer.run_job import Job
from regard.explorer.trust import NO_DISTRIBUTION, OPTIONS, chance_limit, readings
from regard.models.folder import load
from tests.decoding import model_folders
from tests.explorer import toy
from tests.models.test_tagger import make_tagger as tagger
from tests.search.small import embedder
from tests.serving.server import write_model


def never():
    return False


def trust(model, text, row=None, attention=None, **options):
    explored = ExploredModel(model, "small")
    run = explored.run(Job(text, **options))
    return run, explored.trust(run, row, attention, never)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    torch.manual_seed(3)
    return write_model(tmp_path_factory.mktemp("translator"))


def test_a_token_of_a_translation_is_explained_by_its_row_of_cross_attention(translator):
    run, result = trust(translator, "ein Hund", row=2)
    name = result["attention"][0]
    assert name == "decoder.layers.0.cross" and result["row"] == 2
    expected = run.maps[name].mean(0)[2, : len(result["tokens"])]
    assert result["scores"]["attention"] == pytest.approx(expected.tolist(), abs=1e-6)
    assert result["prediction"] == run.sides["target"].tokens[2]
    assert "".join(result["tokens"]).replace("▁", " ").strip() == "ein Hund"
    assert [f["name"] for f in result["figures"]][:3] == [
        "tau_gradient",
        "tau_leave_one_out",
        "change_uniform",
    ]
    assert all(f["reading"].endswith(".") and -1 <= f["value"] <= 1 for f in result["figures"])


def test_the_label_of_a_classifier_has_the_figures_of_faithfulness(tmp_path):
    model = load(model_folders.classifier(tmp_path, encoder=toy.ENCODER))
    _, result = trust(model, "good film")
    probe = Probe(explained_model(model), "good film")
    shown = {figure["name"]: figure["value"] for figure in result["figures"]}
    measured = {}
    for name in ("correlation", "uniform", "permuted", "erasure"):
        measured |= MEASURES[name](probe, OPTIONS).metrics
    assert len(shown) == 6
    assert shown == {name: pytest.approx(measured[name]) for name in shown}


def test_words_of_a_tagger_and_tokens_of_a_language_model_can_be_chosen(tmp_path):
    run, result = trust(tagger("transformer", use_characters=False), "ada lovelace met Babbage", row=3)
    assert result["row"] == 3 and len(result["tokens"]) == 4
    assert result["scores"]["attention"] == pytest.approx(
        run.maps[result["attention"][0]].mean(0)[3].tolist(), abs=1e-5
    )
    torch.manual_seed(3)
    model = write_model(tmp_path, encoder=None)
    run, result = trust(model, "ein")
    assert result["row"] == 3 and len(result["tokens"]) == 3  # the first token after the prompt
    _, first = trust(model, "ein", row=0)
    assert "choose a later one" in first["reason"]


def test_if_figures_are_not_defined_a_reason_is_given(translator):
    assert trust(embedder(), "a cat")[1] == {"reason": NO_DISTRIBUTION}
    assert "no attention" in trust(tagger("recurrent"), "ada met")[1]["reason"]
    assert "at most 128 tokens" in trust(translator, "ein Hund " * 20)[1]["reason"]
    assert "there is no token 99" in trust(translator, "ein", row=99)[1]["reason"]


def test_chance_is_the_95_percent_bound_of_unrelated_rankings():
    generator = torch.Generator().manual_seed(1)
    order = torch.rand(4000, 12, generator=generator).argsort(-1).double()
    sign = torch.sign(order[:, :, None] - order[:, None, :])
    fixed = torch.sign(torch.arange(12.0)[:, None] - torch.arange(12.0)[None, :])
    tau = (sign * fixed).sum((1, 2)) / (12 * 11)
    assert float((tau.abs() > chance_limit(12)).double().mean()) == pytest.approx(0.05, abs=0.015)
    assert chance_limit(2) == 1.0


def test_the_sentences_follow_the_figures():
    figures = {
        "tau_gradient": 0.1, "tau_leave_one_out": 0.8, "change_uniform": 0.01, "change_permuted": 0.7,
        "comprehensiveness": 0.5, "comprehensiveness_random": 0.1, "sufficiency": 0.4,
        "sufficiency_random": 0.4,
    }  # fmt: skip
    texts = {reading["name"]: reading["reading"] for reading in readings(figures, 12, "Hund")}
    assert "chance" in texts["tau_gradient"] and "agree no more" in texts["tau_gradient"]
    assert "also count more" in texts["tau_leave_one_out"]
    assert "hardly" in texts["change_uniform"] and "a lot" in texts["change_permuted"]
    assert "attention finds tokens that count" in texts["comprehensiveness"]
    assert "no more than others" in texts["sufficiency"]
    undefined = readings({**figures, "tau_gradient": math.nan}, 12, "Hund")[0]
    assert undefined["value"] is None and undefined["reading"].startswith("Not defined")
    reverse = readings({**figures, "tau_gradient": -0.9}, 12, "Hund")[0]
    assert "count less" in reverse["reading"]
