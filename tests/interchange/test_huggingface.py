"""Tests of huggingface.py, marian.py, marian_layout.py, gpt2.py, hf_tokenizer.py and supported.py."""

import pytest
import torch

from regard.data.tokenizer import EOS
from regard.errors import OptionError
from regard.interchange.export.compare import compare
from regard.interchange.export.export_model import export_model
from regard.interchange.export.huggingface import HuggingFace
from tests.interchange.small_models import ENGLISH, GERMAN, LAYER, make, run_readme, tokenizer

transformers = pytest.importorskip("transformers")
GPT2 = {**LAYER, "norm": "pre", "activation": "gelu"}
TEXTS = [*ENGLISH[:20], *GERMAN[:20], "  two  spaces ", "< s > is text", "Ünïcödé 日本", "don't!"]


@pytest.mark.parametrize(
    ("side", "rest"),
    [
        ({}, {}),
        ({"activation": "swish"}, {"tie": "target", "scale_embeddings": False, "output_bias": True}),
        ({"activation": "gelu-tanh", "layers": 1}, {"tie": "none"}),
    ],
)
def test_translators_are_equal(tmp_path, side, rest):
    model = make({**LAYER, "heads": 2, **side}, {**LAYER, **side}, **rest)
    HuggingFace().write(model, tmp_path)
    loaded = compare(model, HuggingFace().load(model, tmp_path))
    assert loaded.passed and loaded.max_difference < 2e-5, loaded


def test_padded_batches_of_marian_have_the_scores_of_regard(tmp_path):
    model = make(LAYER, LAYER)
    HuggingFace().write(model, tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    text = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        ["I am.", "Tom likes this house a lot."], return_tensors="pt", padding=True
    )
    target = torch.tensor([[2, 7, 8], [2, 9, 10]])
    with torch.inference_mode():
        ours = model(text.input_ids, target, text.attention_mask.sum(1))
        result = theirs(**text, decoder_input_ids=target).logits
    assert text.attention_mask[0].sum() < text.attention_mask[1].sum()
    generated = [i for i in range(ours.shape[-1]) if i not in (0, 2)]  # PAD and BOS are never generated
    torch.testing.assert_close(result[..., generated], ours[..., generated], rtol=0, atol=2e-5)


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("bias", [True, False])
def test_language_models_are_equal_with_and_without_an_output_bias(tmp_path, position, bias):
    model = make(None, {**GPT2, "position": position}, tie="target", output_bias=bias)
    HuggingFace().write(model, tmp_path)
    loaded = compare(model, HuggingFace().load(model, tmp_path))
    assert loaded.passed and loaded.max_difference < 2e-5, loaded
    width = transformers.AutoConfig.from_pretrained(tmp_path).n_embd
    assert width == (36 if bias else 32)  # a bias costs one channel per head


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "word", "character"])
def test_the_exported_tokenizer_gives_the_same_ids_and_text(tmp_path, kind):
    from regard.interchange.export.hf_tokenizer import save_tokenizer

    ours = tokenizer(kind)
    save_tokenizer(ours, tmp_path, template=["$A", "< /s >"])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = ours.encode(text)
        assert theirs(text).input_ids == [*ids, EOS]
        assert theirs.decode([*ids, EOS], skip_special_tokens=True) == ours.decode(ids)


@pytest.mark.slow
def test_an_export_is_checked_and_its_readme_runs(tmp_path):
    model = make(LAYER, LAYER, source=tokenizer(size=300), tie="target", output_bias=True)
    assert export_model(model, tmp_path / "out", HuggingFace()).passed
    assert len(run_readme(tmp_path / "out", ENGLISH[:2])) == 2


@pytest.mark.parametrize(
    ("encoder", "decoder", "reason"),
    [
        (
            {**LAYER, "norm": "pre"},
            LAYER,
            "MarianMT cannot express this model: its encoder has norm pre, and MarianMT supports post",
        ),
        (
            LAYER,
            {**LAYER, "position": "rotary"},
            "decoder has position rotary, and MarianMT supports sinusoidal",
        ),
        ({**LAYER, "activation": "gelu"}, LAYER, "encoder has activation gelu and its decoder relu"),
        (LAYER, {"kind": "recurrent"}, "decoder has kind recurrent"),
        (None, {**GPT2, "norm": "post"}, "GPT-2 cannot express this model: its decoder has norm post"),
        (None, {**GPT2, "position": "rotary"}, "GPT-2 supports learned"),
        (None, {**GPT2, "activation": "swiglu"}, "activation swiglu"),
    ],
)
def test_unsupported_options_are_refused_with_the_reason(tmp_path, encoder, decoder, reason):
    with pytest.raises(OptionError, match=reason):
        export_model(make(encoder, decoder, tie="target"), tmp_path / "out", HuggingFace())
