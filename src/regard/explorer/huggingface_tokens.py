"""Tokens of a Hugging Face tokenizer as labels and as words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from regard.explorer.run import Side
from regard.pipelines.token_words import Words

SPACE = ("▁", "Ġ", " ")  # marks of a space in front: SentencePiece, byte-level BPE
CONTINUES = "##"  # mark of WordPiece: the token continues a word


class TokenNames:
    """Labels and words of token ids."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.special = set(tokenizer.all_special_ids)
        in_text = {tokenizer.unk_token_id, getattr(tokenizer, "mask_token_id", None)}
        self.markers = self.special - in_text  # special tokens that no text stands for
        vocabulary = tokenizer.get_vocab()
        self.word_pieces = any(token.startswith(CONTINUES) for token in vocabulary)
        self.byte_level = "Ġ" in vocabulary or any(token.startswith("Ġ") for token in vocabulary)

    def side(self, ids: Sequence[int]) -> Side:
        """The side of a map with these tokens; special ones form no word."""
        return Side.of([self.label(i) for i in ids], self.words(ids))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(token) for token in self.tokenizer.convert_ids_to_tokens(list(ids))]

    def label(self, token: int) -> str:
        """A token as it is shown; a byte-level one as characters where its bytes are whole characters."""
        (piece,) = self.pieces([token])
        if not self.byte_level or token in self.special:
            return piece
        text = self.tokenizer.convert_tokens_to_string([piece])
        if not text.strip() or "\ufffd" in text:
            return piece
        return f"▁{text[1:]}" if text[0] == " " else text

    def words(self, ids: Sequence[int]) -> Words:
        """Group the tokens into words by their marks."""
        pieces, groups = self.pieces(ids), list[list[int]]()
        inside = False  # whether a word is open
        for i, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
            if token in self.special:
                inside = False
                continue
            continues = piece.startswith(CONTINUES) if self.word_pieces else not piece.startswith(SPACE)
            if inside and continues:
                groups[-1].append(i)
            else:
                groups.append([i])
            inside = True
        owner = torch.zeros(len(pieces), len(groups), dtype=torch.float64)  # (tokens, words)
        for word, tokens in enumerate(groups):
            owner[tokens, word] = 1
        texts = [self.tokenizer.convert_tokens_to_string([pieces[i] for i in group]) for group in groups]
        return Words([_bare(text) for text in texts], owner)


def _bare(text: str) -> str:
    return text.removeprefix(CONTINUES).replace("▁", " ").strip() or "␣"
