"""Tests of sentencepiece.py: the pieces and options of a file, and files that cannot be read."""

import pytest

from regard.errors import FolderError
from regard.interchange.sentencepiece import read_sentencepiece
from tests.interchange.marian_folders import sentencepiece_model

pytest.importorskip("sentencepiece")


def test_pieces_and_options_are_read(tmp_path):
    path = tmp_path / "source.spm"
    path.write_bytes(sentencepiece_model("source", user_defined_symbols=("Tom",)))
    model = read_sentencepiece(path)
    assert model["kind"] == "unigram" and not model["byte_fallback"]
    assert len(model["pieces"]) == 396 and [piece for piece, _ in model["user_defined"]] == ["Tom"]
    assert model["normalizer"] == {
        "dummy_prefix": True, "remove_extra_whitespaces": True, "whitespace_as_suffix": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda file: setattr(file.trainer_spec, "model_type", 3), "model of words or characters"),
        (lambda file: setattr(file.normalizer_spec, "escape_whitespaces", False), "escape_whitespaces=false"),
        (lambda file: setattr(file.denormalizer_spec, "precompiled_charsmap", b"x"), "denormalizer_spec"),
        (lambda file: setattr(file.normalizer_spec, "precompiled_charsmap", b"\x04\0\0\0\1\0"), "damaged"),
        (lambda file: file.ClearField("pieces"), "without pieces"),
    ],
)
def test_models_that_cannot_be_read_are_refused_by_name(tmp_path, change, reason):
    from sentencepiece import sentencepiece_model_pb2

    file = sentencepiece_model_pb2.ModelProto.FromString(sentencepiece_model("source"))
    change(file)
    path = tmp_path / "source.spm"
    path.write_bytes(file.SerializeToString())
    with pytest.raises(FolderError, match=f"source.spm .*{reason}"):
        read_sentencepiece(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "source.spm").write_bytes(b"not a model")
    with pytest.raises(FolderError, match="source.spm is not a SentencePiece model"):
        read_sentencepiece(tmp_path / "source.spm")
