"""A SentencePiece unigram model as one of our tokenizers: its pieces with their scores, its normaliser, spaces for its ▁."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from regard.data.tokenizer import SPECIALS, UNK, Tokenizer
from regard.errors import FolderError
from regard.interchange.export.libraries import need

UNIGRAM, NORMAL = 1, 1  # numbers in SentencePiece's file format
SPACE = "▁"
FAR = 100.0  # below the least of its scores: for words that it does not cut text into


class SentencePieces:
    """What a .spm file says."""

    def __init__(self, path: Path) -> None:
        need("sentencepiece", "transformers")
        need("google.protobuf", "transformers")
        from sentencepiece import sentencepiece_model_pb2

        self.path, self.file = path, sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
        try:
            self.file.ParseFromString(path.read_bytes())
        except Exception as error:  # protobuf's own kinds of error have changed their place between versions
            raise FolderError(f"{path} is no SentencePiece model ({error}); copy it again") from None
        self._refuse()
        self.scores = {piece.piece: piece.score for piece in self.file.pieces if piece.type == NORMAL}

    def _refuse(self) -> None:
        trainer, normalizer = self.file.trainer_spec, self.file.normalizer_spec
        reasons = {
            "cuts by BPE, and only unigram models are imported": trainer.model_type != UNIGRAM,
            "falls back to bytes": trainer.byte_fallback,
            "puts spaces behind words": trainer.treat_whitespace_as_suffix,
            "puts no space in front of a text": not normalizer.add_dummy_prefix,
            "keeps spaces in a row": not normalizer.remove_extra_whitespaces,
            "has pieces of several words": any(SPACE in piece.piece[1:] for piece in self.file.pieces),
            "has symbols of its own beside the learned pieces": any(
                piece.type == 4 for piece in self.file.pieces
            ),
        }
        for reason, holds in reasons.items():
            if holds:
                raise FolderError(
                    f"{self.path} {reason}, which regard's tokenizer cannot do; import another model"
                )

    def tokenizer(self, pieces: list[str], *, reads: bool) -> Tokenizer:
        """With these pieces by number, ours first. `reads`: for a source, where words of the other language are never found."""
        least = min(self.scores.values()) - FAR
        vocabulary = [(name, 0.0) for name in SPECIALS]
        for piece in pieces[len(SPECIALS) :]:
            known = piece in self.scores
            # No piece of text holds a space behind its first letter, so such a name cannot be found in one. A single letter
            # is found, as Marian finds it: SentencePiece hands unknown letters on as they are, and the vocabulary has them.
            name = piece.replace(SPACE, " ") if known or not reads or len(piece) == 1 else f"< {piece} >"
            vocabulary.append((name, self.scores.get(piece, least)))
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
