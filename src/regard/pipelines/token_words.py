"""Words and their tokens: attention between tokens becomes attention between words."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from regard.data.sentencepiece_tokenizer import SentencePieceTokenizer
from regard.data.tokenizer import _CHARACTERS, EOS, UNK, Tokenizer, split_language


@dataclass(frozen=True)
class Words:
    """The words of a text (separated by whitespace) and the matrix `owner` (tokens, words): 1 for tokens of a
    word.

    A token that is only space belongs to the next word. The language token and the end-of-sentence token
    belong to no word.
    """

    words: list[str]
    owner: Tensor

    @classmethod
    def of_text(cls, tokenizer: Tokenizer, text: str) -> Words:
        """Split a text; its tokens are those of `tokenizer.encode`. A language code in front is no word, so
        words count from 0 behind it.
        """
        code, words = split_language(text, tokenizer.languages)
        spans: list[tuple[int, int] | None] = [*tokenizer.spans(words)]
        return cls._of_spans(words, spans if code is None else [None, *spans])

    @classmethod
    def of_tokens(cls, tokenizer: Tokenizer, tokens: Sequence[int]) -> Words:
        """Split the text of generated tokens, which may differ from those that `encode` would give."""
        spelled = [_bytes_of(tokenizer, token) for token in tokens]
        text, character_of_byte = _decode(b"".join(spelled))
        edges = pairwise(accumulate(map(len, spelled), initial=0))
        spans = [(character_of_byte[a], character_of_byte[b - 1] + 1) if a < b else None for a, b in edges]
        return cls._of_spans(text, spans)

    @classmethod
    def _of_spans(cls, text: str, spans: Sequence[tuple[int, int] | None]) -> Words:
        """Assign tokens to words by the characters that each token stands for."""
        words = list(re.finditer(r"\S+", text))
        owner = torch.zeros(len(spans), len(words), dtype=torch.float64)
        starts, ends = [word.start() for word in words], [word.end() for word in words]
        for t, span in enumerate(spans):
            if span is not None:
                first, after = bisect_right(ends, span[0]), bisect_left(starts, span[1])
                owner[t, first : max(after, first + 1)] = 1  # only space: the next word, if any
        return cls([word.group() for word in words], owner)


@dataclass(frozen=True)
class WordAlignment:
    """The attention between the words of a text and its translation: weights (target words, source words)."""

    weights: Tensor
    source_words: list[str]
    target_words: list[str]


def word_weights(cross: Tensor, source: Words, target: Words) -> Tensor:
    """Convert weights between tokens (target, source) into weights between words (target words, source
    words).

    The weight is the sum over the source word's tokens and the mean over the target word's. Attention to the
    end-of-sentence token is left out.
    """
    cross = cross.double()[: len(target.owner), : len(source.owner)]
    tokens_per_word = target.owner.sum(0)[:, None].clamp(min=1)
    return target.owner.T @ cross @ source.owner / tokens_per_word


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    """Return what a token adds to the text, in UTF-8.

    A byte-bpe token may be part of a character; special and language tokens add nothing.
    """
    if (token <= EOS and token != UNK) or token in tokenizer._skipped:
        return b""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return tokenizer.bytes_of(token)
    piece = tokenizer._pieces[token]
    if tokenizer.kind == "byte-bpe":
        return bytes(_CHARACTERS[c] for c in piece)
    return f" {piece}".encode() if tokenizer.kind == "word" else piece.encode()


def _decode(data: bytes) -> tuple[str, list[int]]:
    """Decode like `Tokenizer.decode`, � for invalid bytes; also return the index of each byte's character."""
    text, character_of_byte = "", []
    while data:
        try:
            valid, invalid = data.decode(), 0
        except UnicodeDecodeError as error:
            valid, invalid = data[: error.start].decode(), error.end - error.start
        character_of_byte += [len(text) + i for i, c in enumerate(valid) for _ in range(len(c.encode()))]
        used = len(valid.encode()) + invalid
        text += valid + "\ufffd" * bool(invalid)
        character_of_byte += [len(text) - 1] * invalid
        data = data[used:]
    return text, character_of_byte
