"""A model in CTranslate2 writes what it writes in regard."""

import pytest
import torch

from regard.data.tokenizer import EOS
from regard.errors import OptionError
from regard.interchange.export import check as checking
from regard.interchange.export.check import check, require, sample, write
from regard.interchange.export.ctranslate2 import CTranslate2
from regard.interchange.export.write import export
from tests.interchange.exports import LAYER, make, run_readme, tokenizer

pytest.importorskip("ctranslate2")
PRE, RMS = {"norm": "pre"}, {"norm_kind": "rms"}


@pytest.fixture(autouse=True)
def few_sentences(monkeypatch):
    """Random weights write to the limit, so a few sentences are many words."""
    monkeypatch.setattr(checking, "SENTENCES", 4)


TRANSLATORS = {
    "post-norm": ({}, {}, {}),
    "pre-norm, unequal sides, one table of its own": (
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
def test_translators_of_every_kind_it_knows_are_equal(tmp_path, name):
    encoder, decoder, rest = TRANSLATORS[name]
    model = make({**LAYER, **encoder}, {**LAYER, **decoder}, **rest)
    CTranslate2().write(model, tmp_path)
    found = check(model, CTranslate2().load(model, tmp_path), sample(model))
    assert found.passed and found.worst < 2e-5, found


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rotary", "alibi", "none"])
def test_language_models_are_equal(tmp_path, position):
    model = make(None, {**LAYER, **PRE, "position": position, "activation": "gelu"}, tie="target")
    CTranslate2().write(model, tmp_path)
    found = check(model, CTranslate2().load(model, tmp_path), sample(model))
    assert found.passed and found.worst < 2e-5, found


def test_an_export_is_checked_and_its_readme_runs(tmp_path):
    model = make(
        LAYER, LAYER, source=tokenizer(size=300), target=tokenizer("byte-bpe"), tie="target", output_bias=True
    )
    assert export(model, tmp_path / "out", CTranslate2()).passed
    assert len(run_readme(tmp_path / "out", ["I like  it, < s > don't you?", "Yes."])) == 2
    assert not list(tmp_path.glob(".*"))


def test_quantized_weights_are_compared_and_the_model_itself_stays_as_it_was(tmp_path):
    model = make(LAYER, LAYER)
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = export(model, tmp_path / "out", CTranslate2("int8"))
    assert found.sentences == 4 and 1e-5 < found.worst < 1.0
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not (tmp_path / "out" / "exact").exists()


def test_a_model_that_differs_is_noticed_and_not_kept(tmp_path):
    model, other = make(LAYER, LAYER), make(LAYER, LAYER, seed=2)

    class Wrong(CTranslate2):
        exact = property(lambda self: self)

        def write(self, model, folder):
            super().write(other, folder)

    with pytest.raises(checking.UnequalError, match="0 of 4 .*nothing was kept"):
        export(model, tmp_path / "out", Wrong())
    assert list(tmp_path.iterdir()) == []


def test_a_tie_is_told_from_a_difference():
    class Echo:
        """Writes what regard writes, but for the last word."""

        def __init__(self, model):
            self.model = model

        def write(self, prompt, limit):
            words = [w for w in write(self.model, prompt, limit).words if w != EOS]
            return [*words[:-1], words[-1] + 1]

        def score(self, prompt, words):
            return write(self.model, prompt, len(words)).log_p

    model = make(LAYER, LAYER, output_bias=True)
    with torch.no_grad():
        model.output.words.bias[EOS] = -99  # texts of some length
    with pytest.raises(checking.UnequalError):
        require(model, Echo(model), "nowhere")
    with torch.no_grad():  # all words alike: every step is a tie
        model.output.words.weight.zero_()
        model.output.words.bias[EOS + 1 :] = 0
    assert check(model, Echo(model), sample(model)).ties == 4


@pytest.mark.parametrize(
    ("encoder", "decoder", "reason"),
    [
        (
            {"kind": "recurrent"},
            {"kind": "bahdanau"},
            "encoder has kind recurrent and CTranslate2 knows transformer",
        ),
        (LAYER, {"kind": "recurrent"}, "decoder has kind recurrent"),
        ({**LAYER, "position": "alibi"}, LAYER, "encoder has position alibi"),
        ({**LAYER, "mask": "diagonal"}, LAYER, "encoder has mask diagonal"),
        (LAYER, {**LAYER, "energy": "cosine"}, "decoder has energy cosine"),
        (LAYER, {**LAYER, "norm": "none"}, "decoder has norm none"),
        ({**LAYER, **RMS}, LAYER, "encoder has norm_kind rms and its decoder layer"),
    ],
)
def test_what_it_cannot_express_is_refused_with_the_reason(tmp_path, encoder, decoder, reason):
    with pytest.raises(OptionError, match=reason):
        export(make(encoder, decoder), tmp_path / "out", CTranslate2())
    assert not (tmp_path / "out").exists()


def test_an_unknown_quantization_is_named():
    with pytest.raises(OptionError, match="int4"):
        CTranslate2("int4")
