"""Tests of explored_model.py and attention_changes.py: every kind of model, and changed attention."""

import numpy as np
import pytest
import torch

import regard
from regard.attention import Pinned, Uniform, Zero
from regard.decoding.attention_weights import attention_maps
from regard.errors import OptionError
from regard.explorer.attention_changes import AttentionChange, as_edits
from regard.explorer.explored_model import ExploredModel
from regard.explorer.run_job import MAX_TOKENS, Job
from regard.models.folder import load
from regard.pipelines.classify import classify
from regard.serving.http_errors import RequestError
from tests.decoding import model_folders
from tests.models.test_tagger import make_tagger as tagger
from tests.search.small import embedder
from tests.serving.server import write_model

TEXT = "ein kleiner Hund"


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    torch.manual_seed(3)
    return write_model(tmp_path_factory.mktemp("translator"))


def weights(run, name):
    return np.frombuffer(run.head(run.names.index(name), 0), "<f4").reshape(run.maps[name].shape[1:])


def test_a_translation_is_that_of_the_python_call_with_its_attention(translator):
    run = ExploredModel(translator, "small").run(Job(TEXT, beam=3))
    expected = regard.translate(TEXT, translator, beam=3, nbest=3)
    assert run.output["text"] == expected
    assert [h["text"] for h in run.output["hypotheses"]] == [h.text for h in expected.hypotheses]
    tokens = expected.hypotheses[0].all_tokens
    (maps,) = attention_maps([expected.source_tokens], [tokens], translator)
    assert list(run.maps) == list(maps)
    for name in maps:
        assert torch.equal(run.maps[name], maps[name])
    assert len(run.output["tokenLogP"]) == len(tokens)
    assert run.output["logP"] == pytest.approx(sum(run.output["tokenLogP"]))


def test_changed_attention_equals_intervene(translator):
    explored = ExploredModel(translator, "small")
    name, base = "decoder.layers.0.cross", explored.run(Job(TEXT))
    changes = (
        AttentionChange(map=name, change="zero", head=0),
        AttentionChange(map=name, change="pin", key=1, head=1),
    )
    run = explored.run(Job(TEXT, edits=as_edits(changes), base=base))
    with regard.intervene(translator, {name: [Zero(heads=0), Pinned(1, heads=1)]}):
        assert run.output["text"] == regard.translate(TEXT, translator)
    assert not run.maps[name][0].any() and (run.maps[name][1, :, 1] == 1).all()
    comparison = run.output["comparison"]
    assert comparison["original"]["plain"] == pytest.approx(base.output["logP"])
    assert comparison["changed"]["edited"] == pytest.approx(run.output["logP"])
    assert comparison["original"]["edited"] != pytest.approx(comparison["original"]["plain"])
    assert explored.run(Job(TEXT)).output == base.output  # nothing of the change remains


def test_one_row_can_be_made_uniform(translator):
    explored, name = ExploredModel(translator, "small"), "encoder.layers.0.attention.self"
    run = explored.run(Job(TEXT, edits=as_edits((AttentionChange(map=name, change="uniform", row=2),))))
    rows = weights(run, name)
    assert np.allclose(rows[2], 1 / len(rows)) and not np.allclose(rows[1], 1 / len(rows))


def test_pinning_a_key_does_not_change_rows_that_may_not_attend_to_it(translator):
    name = "decoder.layers.0.attention.self"
    run = ExploredModel(translator, "small").run(
        Job(TEXT, edits=as_edits((AttentionChange(map=name, change="pin", key=2),)))
    )
    assert (run.maps[name][:, 2:, 2] == 1).all() and not run.maps[name][:, :2, 2].any()


def test_a_recurrent_translator_has_rows_that_cannot_be_selected(tmp_path):
    explored = ExploredModel(load(model_folders.translator(tmp_path)), "small")
    (attention_map,) = [
        m for m in explored.run(Job("Ein Hund.")).describe("id")["maps"] if m["kind"] == "cross"
    ]
    assert attention_map["rowsEditable"] is False
    change = AttentionChange(map=attention_map["name"], change="uniform")
    base = explored.run(Job("Ein Hund."))
    run = explored.run(Job("Ein Hund.", edits=as_edits((change,)), base=base))
    row = weights(run, attention_map["name"])[0]
    assert np.allclose(row, 1 / len(row))


def test_a_language_model_shows_prompt_and_continuation(tmp_path):
    torch.manual_seed(3)
    model = write_model(tmp_path, encoder=None)
    explored = ExploredModel(model, "small")
    base = explored.run(Job("ein Hu"))
    assert base.task == "generate" and base.output["prompt"] == "ein Hu" and base.output["promptTokens"] == 6
    lengths = {len(base.sides[side].tokens) for side in ("target", "inputs")}
    assert lengths == {len(base.output["tokenLogP"])}
    (name,) = base.names
    run = explored.run(Job("ein Hu", edits={name: [Uniform()]}, base=base))
    assert run.output["comparison"]["changed"]["edited"] == pytest.approx(run.output["logP"])


def test_a_classifier_shows_its_pooling(tmp_path):
    model = load(model_folders.classifier(tmp_path))
    explored = ExploredModel(model, "small")
    run = explored.run(Job("good film"))
    assert run.output["label"] == classify("good film", model)
    assert [word["text"] for word in run.sides["source"].words] == ["good", "film", "</s>"]
    (attention_map,) = run.describe("id")["maps"]
    assert (attention_map["kind"], attention_map["rowSide"], attention_map["rowsEditable"]) == (
        "pooling",
        "queries",
        False,
    )
    changed = explored.run(Job("good film", edits={attention_map["name"]: [Pinned(0)]}, base=run))
    assert changed.output["probabilities"] != run.output["probabilities"]


def test_a_tagger_shows_words_and_tags():
    model = tagger("transformer", use_characters=False)
    run = ExploredModel(model, "tagger").run(Job("ada lovelace met Babbage"))
    assert run.task == "tag" and run.output["words"] == ["ada", "lovelace", "met", "Babbage"]
    assert len(run.output["tags"]) == 4 and all(kind.startswith("encoder") for kind in run.names)


def test_an_embedder_compares_its_vectors():
    explored = ExploredModel(embedder(), "embedder")
    base = explored.run(Job("a cat"))
    assert base.output["width"] == len(base.private["vector"])
    run = explored.run(Job("a cat", edits={base.names[0]: [Zero()]}, base=base))
    assert run.output["cosine"] < 0.9999
    assert explored.run(Job("a cat", base=base)).output["cosine"] == pytest.approx(1, abs=1e-5)


def test_a_model_without_attention_still_runs():
    run = ExploredModel(tagger("recurrent"), "tagger").run(Job("ada met Babbage"))
    assert run.maps is None and run.describe("id")["maps"] == [] and run.thumbnails() == b""


def test_bad_requests_are_errors_of_one_sentence(translator):
    explored = ExploredModel(translator, "small")
    with pytest.raises(OptionError, match="there is no text"):
        explored.run(Job("  \n"))
    with pytest.raises(RequestError, match=f"at most {MAX_TOKENS}"):
        explored.run(Job("ein " * 200))
    with pytest.raises(OptionError, match="needs key, the column"):
        as_edits((AttentionChange(map="x", change="pin"),))
    with pytest.raises(OptionError, match="matches no module"):
        explored.run(Job(TEXT, edits={"decoder.layers.7.cross": [Zero()]}))


def test_a_cancelled_run_ends(translator):
    with pytest.raises(RequestError, match="client has left"):
        ExploredModel(translator, "small").run(Job(TEXT, cancelled=lambda: True))


def test_the_stages_of_a_head_end_in_its_weights(translator):
    explored = ExploredModel(translator, "small")
    run = explored.run(Job(TEXT))
    for index, name in enumerate(run.names):
        shape = run.maps[name].shape[1:]
        stages = {}
        for stage in ("energy", "biased", "masked", "normalised", "gated"):
            values = np.frombuffer(explored.stage(run, index, 1, stage), "<f4")
            stages[stage] = torch.tensor(values).reshape(shape)
        assert torch.allclose(stages["gated"], run.maps[name][1].float(), atol=1e-6)
        assert torch.allclose(stages["masked"].softmax(-1), stages["normalised"], atol=1e-5)
        future = torch.ones(shape, dtype=torch.bool).triu(1) & ("decoder" in name and "cross" not in name)
        assert torch.isneginf(stages["masked"])[future].all() and torch.isfinite(stages["energy"]).all()
    with pytest.raises(OptionError, match="stage must be one of"):
        explored.stage(run, 0, 0, "other")
    with pytest.raises(OptionError, match="there is no head 9"):
        explored.stage(run, 0, 9, "energy")


@pytest.mark.parametrize("kind", ["recurrent", "classifier", "tagger", "embedder"])
def test_every_kind_of_model_has_stages(kind, tmp_path):
    if kind == "recurrent":
        model = load(model_folders.translator(tmp_path))
    elif kind == "classifier":
        model = load(model_folders.classifier(tmp_path))
    else:
        model = tagger("transformer", use_characters=False) if kind == "tagger" else embedder()
    explored = ExploredModel(model, "small")
    run = explored.run(Job("ada met a cat"))
    assert run.names
    for index, name in enumerate(run.names):
        shape = run.maps[name].shape[1:]
        gated = np.frombuffer(explored.stage(run, index, 0, "gated"), "<f4").reshape(shape)
        assert np.allclose(gated, run.maps[name][0].float(), atol=1e-6)
        assert np.isfinite(np.frombuffer(explored.stage(run, index, 0, "energy"), "<f4")).all()
