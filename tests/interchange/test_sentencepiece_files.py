"""Tests of sentencepiece_files.py: imported models are exported if `tokenizers` gives the same tokens."""

import pytest

from regard.errors import OptionError
from regard.interchange import import_marian
from regard.interchange.export.export_model import export_model
from regard.interchange.export.sentencepiece_files import convert_sentencepiece
from tests.interchange.marian_folders import LANGUAGES, save_marian
from tests.interchange.small_models import ENGLISH, GERMAN

pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")


def test_an_imported_unigram_model_is_exported(tmp_path):
    save_marian(tmp_path, missing=None)
    model, _ = import_marian.read(tmp_path)
    assert export_model(model, tmp_path / "out", "huggingface").passed
    ids = [model.source_tokenizer.encode(text) for text in ENGLISH[:200]]
    targets = [model.target_tokenizer.encode(text) for text in GERMAN[:200]]
    texts = [model.target_tokenizer.decode(row) for row in targets]
    convert_sentencepiece(model)
    assert model.source_tokenizer.kind == "unigram"
    assert [model.source_tokenizer.encode(text) for text in ENGLISH[:200]] == ids
    assert [model.target_tokenizer.encode(text) for text in GERMAN[:200]] == targets
    assert [model.target_tokenizer.decode(row) for row in targets] == texts


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"spm": {"model_type": "bpe"}}, "are BPE instead of unigram"),
        ({"spm": {"byte_fallback": True}}, "fall back to bytes"),
        ({"spm": {"user_defined_symbols": ("Tom",)}}, "have user-defined symbols"),
        ({"spm": {"remove_extra_whitespaces": False}}, "treat spaces in another way"),
        ({"languages": LANGUAGES}, "have tokens for languages"),
        ({"missing": 3}, "do not give the same tokens"),  # the vocabulary lacks pieces of the sample
    ],
)
def test_models_that_tokenizers_cannot_express_are_refused(tmp_path, options, reason):
    save_marian(tmp_path, **options)
    with pytest.raises(OptionError, match=f"of this imported model {reason}"):
        export_model(import_marian.read(tmp_path)[0], tmp_path / "out", "huggingface")
    assert not (tmp_path / "out").exists()
