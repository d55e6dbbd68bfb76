"""Tokenizers of imported models as files of `tokenizers`, which exported models use.

`tokenizers` has SentencePiece's unigram models, with small differences: a piece that the vocabulary does not
have is split into smaller ones, and an unknown character that the vocabulary has is a token even beside
others. So the token ids of the sample sentences are compared, and other kinds are refused.
"""

from __future__ import annotations

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from regard.data.sentencepiece_segmentation import SPACE
from regard.data.sentencepiece_tokenizer import SentencePieceTokenizer, unpacked
from regard.data.tokenizer import SPECIALS, UNK, Tokenizer
from regard.errors import OptionError
from regard.interchange.export.compare import Model, sample_prompts

PENALTY = 100.0  # below the lowest score, for tokens that are not pieces of the model


def convert_sentencepiece(model: Model) -> None:
    """Replace the SentencePiece tokenizers of a model, if it has such; OptionError if ids would differ."""
    source, target = model.source_tokenizer, model.target_tokenizer
    if not isinstance(target, SentencePieceTokenizer) or not isinstance(source, SentencePieceTokenizer):
        return
    for tokenizer in (source, target):
        _check_supported(tokenizer)
    before = sample_prompts(model)
    model.source_tokenizer = _converted(source, is_source=True)
    model.target_tokenizer = _converted(target, is_source=False)
    if sample_prompts(model) != before:
        raise _refused("do not give the same tokens in `tokenizers`")


def _check_supported(tokenizer: SentencePieceTokenizer) -> None:
    definition = tokenizer.definition
    usual = {"dummy_prefix": True, "remove_extra_whitespaces": True, "whitespace_as_suffix": False}
    reasons = {
        "are BPE instead of unigram": definition["kind"] != "unigram",
        "fall back to bytes": definition["byte_fallback"],
        "have tokens for languages": bool(tokenizer.languages),
        "have user-defined symbols": bool(definition["user_defined"]),
        "treat spaces in another way": definition["normalizer"] != usual,
        "have pieces with several words": any(SPACE in piece[1:] for piece, _ in definition["pieces"]),
    }
    for reason, holds in reasons.items():
        if holds:
            raise _refused(reason)


def _refused(reason: str) -> OptionError:
    return OptionError(
        f"the SentencePiece tokenizers of this imported model {reason}, which an exported tokenizer cannot "
        "express; convert the folder that the model was imported from"
    )


def _converted(tokenizer: SentencePieceTokenizer, *, is_source: bool) -> Tokenizer:
    """Return a unigram tokenizer with the same ids. In a source, pieces of the other language never match."""
    scores: dict[str, float] = dict(tokenizer.definition["pieces"])
    lowest = min(scores.values()) - PENALTY
    vocabulary = [(name, 0.0) for name in SPECIALS]
    for i, piece in enumerate(tokenizer.entries, start=len(SPECIALS)):
        spelled = piece.replace(" ", SPACE)
        # Single characters match, as in Marian: SentencePiece passes unknown characters on unchanged. No
        # text has a word with a space after its first character.
        matches = spelled in scores or (bool(piece) and (not is_source or len(piece) == 1))
        vocabulary.append((piece if matches else f"< {i} {piece} >", scores.get(spelled, lowest)))
    inner = tokenizers.Tokenizer(models.Unigram(vocabulary, UNK, False))
    rules = unpacked(tokenizer.definition["rules"])
    spaces = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    inner.normalizer = normalizers.Sequence(
        [*([normalizers.Precompiled(rules)] if rules else []), *spaces, normalizers.Prepend(" ")]
    )
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(" [^ ]*"), "isolated")
    inner.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return Tokenizer(inner.to_str())
