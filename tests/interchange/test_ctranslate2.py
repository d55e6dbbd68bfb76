"""Tests of ctranslate2.py and ctranslate2_spec.py: outputs in CTranslate2 equal regard's."""

import pytest
import torch

from regard.data.tokenizer import EOS
from regard.errors import OptionError
from regard.interchange.export.compare import compare
from regard.interchange.export.ctranslate2 import CTranslate2
from regard.interchange.export.export_model import export_model
from tests.interchange.small_models import LAYER, make, run_readme, tokenizer

pytest.importorskip("ctranslate2")
PRE, RMS = {"norm": "pre"}, {"norm_kind": "rms"}


TRANSLATORS = {
    "post-norm": ({}, {}, {}),
    "pre-norm, different sides, tied target embeddings": (
        PRE,
        {**PRE, "layers": 1, "heads": 2, "activation": "gelu"},
        {"tie": "target"},
    ),
    "rotary, shared key heads, swiglu, rms": (
        {"position": "rotary", "key_heads": 2, "activation": "swiglu", **PRE, **RMS},
        {"position": "rotary", "key_heads": 2, "activation": "swish", **PRE, **RMS},
        {"tie": "none", "output_bias": True, "scale_embeddings": False},
    ),
    "learned and no positions": (
        {"position": "learned"},
        {"position": "none", "activation": "gelu-tanh"},
        {},
    ),
}


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translators_with_supported_options_are_equal(tmp_path, name):
    encoder, decoder, rest = TRANSLATORS[name]
    model = make({**LAYER, **encoder}, {**LAYER, **decoder}, **rest)
    CTranslate2().write(model, tmp_path)
    loaded = compare(model, CTranslate2().load(model, tmp_path))
    assert loaded.passed and loaded.max_difference < 2e-5, loaded


def test_an_empty_translation_is_equal(tmp_path):
    model = make(LAYER, LAYER, output_bias=True)
    with torch.no_grad():
        model.output.projection.bias[EOS] += 40
    CTranslate2().write(model, tmp_path)
    runner = CTranslate2().load(model, tmp_path)
    assert runner.generate([7, 8, EOS], 5) == [] and compare(model, runner).passed


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "none"])
def test_language_models_are_equal(tmp_path, position):
    model = make(None, {**LAYER, **PRE, "position": position, "activation": "gelu"}, tie="target")
    CTranslate2().write(model, tmp_path)
    loaded = compare(model, CTranslate2().load(model, tmp_path))
    assert loaded.passed and loaded.max_difference < 2e-5, loaded


def test_an_export_is_checked_and_its_readme_runs(tmp_path):
    model = make(
        LAYER, LAYER, source=tokenizer(size=300), target=tokenizer("byte-bpe"), tie="target", output_bias=True
    )
    assert export_model(model, tmp_path / "out", CTranslate2()).passed
    assert len(run_readme(tmp_path / "out", ["I like  it, < s > don't you?", "Yes."])) == 2
    assert not list(tmp_path.glob(".*"))


def test_quantized_weights_are_compared_and_the_model_is_unchanged(tmp_path):
    model = make(LAYER, LAYER)
    before = {name: p.clone() for name, p in model.named_parameters()}
    result = export_model(model, tmp_path / "out", CTranslate2("int8"))
    assert result.sentences == 4 and 1e-5 < result.max_difference < 1.0
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not (tmp_path / "out" / "exact").exists()


@pytest.mark.parametrize(
    ("encoder", "decoder", "reason"),
    [
        (
            {"kind": "recurrent"},
            {"kind": "bahdanau"},
            "encoder has kind recurrent, and CTranslate2 supports transformer",
        ),
        (LAYER, {"kind": "recurrent"}, "decoder has kind recurrent"),
        ({**LAYER, "position": "alibi"}, LAYER, "encoder has position alibi"),
        ({**LAYER, "mask": "diagonal"}, LAYER, "encoder has mask diagonal"),
        (LAYER, {**LAYER, "energy": "cosine"}, "decoder has energy cosine"),
        (LAYER, {**LAYER, "norm": "none"}, "decoder has norm none"),
        ({**LAYER, **RMS}, LAYER, "encoder has norm_kind rms and its decoder layer"),
    ],
)
def test_unsupported_options_are_refused_with_the_reason(tmp_path, encoder, decoder, reason):
    with pytest.raises(OptionError, match=reason):
        export_model(make(encoder, decoder), tmp_path / "out", CTranslate2())
    assert not (tmp_path / "out").exists()


def test_an_unknown_quantization_is_named():
    with pytest.raises(OptionError, match="int4"):
        CTranslate2("int4")
