"""Tests of huggingface_trust.py: figures of one output of a Hugging Face model."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5")

from regard.evaluation.explanation.measures import MEASURES
from regard.evaluation.explanation.probe import Probe
from regard.explorer.huggingface_model import HuggingFaceModel
from regard.explorer.huggingface_trust import LabelledTransformers
from regard.explorer.run_job import Job
from regard.explorer.trust import OPTIONS
from tests.explorer import huggingface_folders

TEXT = "The man is eating food."


def figures(model, text=TEXT, row=None, attention=None):
    run = model.run(Job(text))
    return run, model.trust(run, row, attention, lambda: False)


@pytest.mark.parametrize("kind", ["Marian", "GPT-2", "Llama"])
def test_a_generated_token_is_explained_by_its_row(huggingface, kind):
    model = huggingface(kind)
    row = 2 if kind == "Marian" else len(model._read(TEXT)) + 1
    run, result = figures(model, row=row)
    name = run.names[-1]
    assert result["attention"] == [name] and result["row"] == row
    special = model.tokens.special
    ids = run.private["source"] if kind == "Marian" else run.private["target"][: row + 1]
    features = [i for i, token in enumerate(ids) if token not in special]
    assert result["keys"] == features  # where these tokens are in the map
    expected = run.maps[name].mean(0)[row, features]
    assert result["scores"]["attention"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert result["tokens"] == [model.tokens.label(ids[i]) for i in features]
    assert result["prediction"] == run.sides["target"].tokens[row].replace("▁", "")
    assert result["probability"] == pytest.approx(2.718281828 ** run.output["tokenLogP"][row], rel=1e-4)
    # Without a token the model reads one token less.
    source = ids[: features[1]] + ids[features[1] + 1 :]
    with torch.no_grad():
        if kind == "Marian":
            inputs = model._inputs(source, run.private["target"][: row + 1])
        else:
            inputs = model._inputs(source)
        p = model.model(**inputs).logits[0, -1].double().softmax(-1)
    probe_p = _distribution(model, run, row)
    change = float((p - probe_p).abs().sum() / 2)
    assert result["scores"]["leave_one_out"][1] == pytest.approx(change, abs=1e-5)


@torch.no_grad()
def _distribution(model, run, row):
    logits = model.model(**run.private["inputs"]).logits[0]
    return logits[row].double().softmax(-1)


def test_another_layer_can_be_tested_and_a_missing_row_is_an_error_of_one_sentence(huggingface):
    model = huggingface("Marian")
    _, result = figures(model, row=1, attention="decoder.layers.0.cross")
    assert result["attention"] == ["decoder.layers.0.cross"] and len(result["figures"]) == 6
    assert "there is no output 99" in figures(model, row=99)[1]["reason"]
    _, result = figures(model, row=1, attention="encoder.layers.0.attention.self")
    assert result["reason"].startswith("There are no figures: ") and result["reason"].count("\n") == 0


def test_a_masked_token_is_explained_and_a_vector_is_not(huggingface):
    run, result = figures(huggingface("BERT"), "The [MASK] is eating.")
    assert result["prediction"] == next(iter(run.output["probabilities"]))
    tokens = run.sides["source"].tokens
    features = [i for i, token in enumerate(tokens) if token not in ("[CLS]", "[MASK]", "[SEP]")]
    assert result["tokens"] == [tokens[i] for i in features]
    expected = run.maps[run.names[-1]].mean(0)[tokens.index("[MASK]"), features]
    assert result["scores"]["attention"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert figures(huggingface("BERT"))[1]["reason"].startswith("Without [MASK] the model chooses nothing")


@pytest.mark.parametrize("head", ["BertForSequenceClassification", "BertForTokenClassification"])
def test_classifiers_and_taggers_have_the_figures_of_faithfulness(tmp_path, head):
    model = HuggingFaceModel.of_folder(huggingface_folders.save_as("BERT", head, tmp_path))
    row = None if "Sequence" in head else 2
    run, result = figures(model, row=row)
    explained = LabelledTransformers(model)
    probe = Probe(explained, TEXT)
    if row is None:
        assert result["prediction"] == run.output["label"]
        measured = MEASURES["uniform"](probe, OPTIONS).metrics["change_uniform"]
        assert result["figures"][2]["value"] == pytest.approx(measured, abs=1e-6)
    else:
        assert result["prediction"] == run.output["tags"][2] and result["row"] == 2
        position = [w for w in run.sides["source"].words if not w["special"]][2]["tokens"][0]
        expected = run.maps[run.names[-1]].mean(0)[position, 1:-1]
        assert result["scores"]["attention"] == pytest.approx(expected.tolist(), abs=1e-5)
