"""Tests of trust.py: figures of one output as those of `faithfulness`, and what their sentences say."""

import pytest
import torch

from regard.evaluation.explanation.explained_models import explained_model
from regard.evaluation.explanation.measures import MEASURES
from regard.evaluation.explanation.probe import Probe
from regard.explorer.explored_model import ExploredModel
from regard.explorer.run_job import Job
from regard.explorer.trust import NO_DISTRIBUTION, OPTIONS
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
