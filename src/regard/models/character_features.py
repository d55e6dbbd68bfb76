"""Character features of words, for taggers: they distinguish unseen words, whose embedding is that of UNK.

Characters are UTF-8 bytes (data/word_character_tokenizer.py), so any script works and there is no character
vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.data.tokenizer import EOS, PAD, UNK
from regard.data.word_character_tokenizer import BYTES

SHAPE_FEATURES = 7  # see `word_shape`


def split_characters(source: Tensor, words: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split the rows of a word-character tokenizer: each word id is followed by the bytes of the word.

    Args:
        source: (batch, S).
        words: size of the word vocabulary; larger ids are bytes.

    Returns:
        Word ids (batch, W), characters (batch, W, L) as byte + 1 padded with 0, and words per row (batch,).
    """
    is_word = (source < words) & (source != PAD) & (source != EOS)
    counts = is_word.sum(1)
    row = torch.arange(len(source), device=source.device)[:, None].expand_as(source)
    word = is_word.cumsum(1) - 1  # index of the word that each token belongs to
    position = torch.arange(source.shape[1], device=source.device).expand_as(source)
    word_start = torch.where(is_word, position, 0).cummax(1).values  # position of that word's id
    word_ids = source.new_full((len(source), max(1, int(counts.max()))), PAD)
    word_ids[row[is_word], word[is_word]] = source[is_word]
    is_byte = source >= words
    offset = position - word_start  # 1 for the first character
    longest = int((offset * is_byte).max())
    characters = source.new_zeros((*word_ids.shape, max(1, longest)))
    characters[row[is_byte], word[is_byte], offset[is_byte] - 1] = source[is_byte] - words + 1
    return word_ids, characters, counts


def word_shape(characters: Tensor) -> Tensor:
    """Seven flags per word, (…, L) → (…, 7).

    Initial capital, later capital, only capitals, digit, punctuation, non-ASCII byte, single character.
    """
    byte = characters - 1
    upper, lower = (byte >= 65) & (byte <= 90), (byte >= 97) & (byte <= 122)
    digit, non_ascii = (byte >= 48) & (byte <= 57), byte >= 128
    punctuation = (byte >= 0) & ~(upper | lower | digit | non_ascii)
    capitals = upper.any(-1) & ~lower.any(-1)
    flags = (
        upper[..., 0],
        upper[..., 1:].any(-1),
        capitals,
        digit.any(-1),
        punctuation.any(-1),
        non_ascii.any(-1),
        (byte >= 0).sum(-1) == 1,
    )
    return torch.stack(flags, -1)


class CharacterFeatures(nn.Module):
    """CNN over the characters with max-pooling (Ma & Hovy 2016), plus a projection of the word shape."""

    def __init__(self, dim: int, width: int, kernel: int) -> None:
        super().__init__()
        self.width = width
        self.table = nn.Embedding(1 + BYTES, dim, padding_idx=0)
        nn.init.uniform_(self.table.weight, -((3 / dim) ** 0.5), (3 / dim) ** 0.5)
        self.table.weight.data[0].zero_()
        self.convolution = nn.Conv1d(dim, width, kernel, padding=kernel // 2)
        self.shape = nn.Linear(SHAPE_FEATURES, width, bias=False)

    def forward(self, characters: Tensor) -> Tensor:
        """Characters (…, L), padded with 0 → features (…, width)."""
        flat = characters.reshape(-1, characters.shape[-1])  # (words, L)
        x = self.convolution(self.table(flat).transpose(1, 2))[..., : flat.shape[1]]  # (words, width, L)
        x = x.masked_fill((flat == 0)[:, None], torch.finfo(x.dtype).min).amax(-1)  # (words, width)
        x = torch.relu(x) + self.shape(word_shape(flat).to(x.dtype))
        return x.reshape(*characters.shape[:-1], self.width)


def drop_words(tokens: Tensor, rate: float) -> Tensor:
    """Replace tokens by UNK at random, to train the embedding of UNK and the character features."""
    dropped = torch.rand(tokens.shape, device=tokens.device) < rate
    return tokens.masked_fill(dropped & (tokens > EOS), UNK)
