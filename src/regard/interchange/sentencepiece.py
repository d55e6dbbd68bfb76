"""Convert a SentencePiece unigram model into a tokenizer: same pieces, scores and normalisation; spaces for
▁."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from regard.data.tokenizer import SPECIALS, UNK, Tokenizer
from regard.errors import FolderError
from regard.interchange.export.libraries import require_library

UNIGRAM, NORMAL = 1, 1  # constants of SentencePiece's file format
SPACE = "▁"
PENALTY = 100.0  # below the lowest score, for tokens that are not pieces of the model


class SentencePieceModel:
    """A .spm file; unsupported options raise FolderError."""

    def __init__(self, path: Path) -> None:
        require_library("sentencepiece", "transformers")
        require_library("google.protobuf", "transformers")
        from sentencepiece import sentencepiece_model_pb2

        self.path, self.file = path, sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
        try:
            self.file.ParseFromString(path.read_bytes())
        except Exception as error:  # the module of protobuf's errors differs between versions
            raise FolderError(f"{path} is not a SentencePiece model ({error}); copy it again") from None
        self._check_supported()
        self.scores = {piece.piece: piece.score for piece in self.file.pieces if piece.type == NORMAL}

    def _check_supported(self) -> None:
        trainer, normalizer = self.file.trainer_spec, self.file.normalizer_spec
        reasons = {
            "uses BPE instead of unigram": trainer.model_type != UNIGRAM,
            "falls back to bytes": trainer.byte_fallback,
            "treats whitespace as a suffix": trainer.treat_whitespace_as_suffix,
            "adds no space before a text": not normalizer.add_dummy_prefix,
            "keeps repeated spaces": not normalizer.remove_extra_whitespaces,
            "has pieces with several words": any(SPACE in piece.piece[1:] for piece in self.file.pieces),
            "has user-defined symbols": any(piece.type == 4 for piece in self.file.pieces),
        }
        for reason, holds in reasons.items():
            if holds:
                raise FolderError(
                    f"{self.path} {reason}, which regard's tokenizer does not support; import another model"
                )

    def tokenizer(self, pieces: list[str], *, is_source: bool) -> Tokenizer:
        """Return a tokenizer with these pieces in the order of their ids, our special tokens first.

        With `is_source`, pieces that only the other language's model has never match.
        """
        lowest = min(self.scores.values()) - PENALTY
        vocabulary = [(name, 0.0) for name in SPECIALS]
        for piece in pieces[len(SPECIALS) :]:
            known = piece in self.scores
            # Pre-tokenized text has a space at most in front, so a name with further spaces never matches.
            # Single characters do match, as in Marian: SentencePiece passes unknown characters on unchanged.
            matches = known or not is_source or len(piece) == 1
            name = piece.replace(SPACE, " ") if matches else f"< {piece} >"
            vocabulary.append((name, self.scores.get(piece, lowest)))
        inner = tokenizers.Tokenizer(models.Unigram(vocabulary, UNK, False))
        inner.normalizer = normalizers.Sequence(self._normalizers())
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(" [^ ]*"), "isolated")
        inner.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        return Tokenizer(inner.to_str())

    def _normalizers(self) -> list[Any]:
        charsmap = self.file.normalizer_spec.precompiled_charsmap
        first = [normalizers.Precompiled(charsmap)] if charsmap else []
        spaces = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
        return [*first, *spaces, normalizers.Prepend(" ")]
