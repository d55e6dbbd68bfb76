"""Read a SentencePiece model (.spm) for a SentencePieceTokenizer: pieces, scores, normalization rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.data.sentencepiece_segmentation import CharacterMap
from regard.data.sentencepiece_tokenizer import packed
from regard.errors import FolderError
from regard.interchange.export.libraries import require_library

# constants of SentencePiece's file format
KINDS = {1: "unigram", 2: "bpe"}
NORMAL, USER_DEFINED, UNUSED = 1, 4, 5


def read_sentencepiece(path: Path) -> dict[str, Any]:
    """Return the definition of a model as `SentencePieceTokenizer` stores it.

    Its keys: kind (unigram or bpe); pieces, user_defined and unused with their scores; byte_fallback; rules,
    the replacements of characters, packed; normalizer, the other options of `Normalizer`.
    """
    file = _read(path)
    trainer, normalizer = file.trainer_spec, file.normalizer_spec
    if trainer.model_type not in KINDS:
        raise FolderError(
            f"{path} is a SentencePiece model of words or characters, and regard imports unigram and BPE; "
            "import another model"
        )
    if not normalizer.escape_whitespaces:
        raise FolderError(
            f"{path} is a SentencePiece model with escape_whitespaces=false, which regard does not support; "
            "import another model"
        )
    if file.denormalizer_spec.precompiled_charsmap:
        raise FolderError(
            f"{path} changes characters after decoding (denormalizer_spec), which regard does not support; "
            "import another model"
        )
    _check_rules(normalizer.precompiled_charsmap, path)
    types = {"pieces": NORMAL, "user_defined": USER_DEFINED, "unused": UNUSED}
    pieces = {
        name: [[piece.piece, piece.score] for piece in file.pieces if piece.type == number]
        for name, number in types.items()
    }
    return {
        "kind": KINDS[trainer.model_type],
        **pieces,
        "byte_fallback": trainer.byte_fallback,
        "rules": packed(normalizer.precompiled_charsmap),
        "normalizer": {
            "dummy_prefix": normalizer.add_dummy_prefix,
            "remove_extra_whitespaces": normalizer.remove_extra_whitespaces,
            "whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
        },
    }


def _read(path: Path) -> Any:
    require_library("sentencepiece", "transformers")
    require_library("google.protobuf", "transformers")
    from sentencepiece import sentencepiece_model_pb2

    file = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        file.ParseFromString(path.read_bytes())
    except Exception as error:  # the module of protobuf's errors differs between versions
        raise FolderError(f"{path} is not a SentencePiece model ({error}); copy it again") from None
    if not any(piece.type == NORMAL for piece in file.pieces):
        raise FolderError(f"{path} is a SentencePiece model without pieces; copy it again")
    return file


def _check_rules(charsmap: bytes, path: Path) -> None:
    """Look up a few characters, which fails if the map is damaged."""
    try:
        rules = CharacterMap(charsmap)
        for character in "a\t\u00a0\u0301\uff21\U0001f600":
            rules.longest(character, 0)
    except (ValueError, IndexError):
        raise FolderError(f"{path} has damaged normalization rules; copy it again") from None
