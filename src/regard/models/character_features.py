"""What a word looks like: features from its letters, so that a word never seen is not just unknown.

Letters are UTF-8 bytes (see `data.spelling`): any script, any sign, no list of characters to learn.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.data.spelled_tokenizer import BYTES
from regard.data.tokenizer import EOS, PAD, UNK

SHAPES = 7


def split(source: Tensor, words: int) -> tuple[Tensor, Tensor, Tensor]:
    """Spelled rows (batch, S) → words (batch, W), their letters (batch, W, L) as byte + 1 with 0 behind, and words of each row.

    `words` is the size of the vocabulary of words: numbers from there on are bytes.
    """
    is_word = (source < words) & (source != PAD) & (source != EOS)
    counts = is_word.sum(1)
    row = torch.arange(len(source), device=source.device)[:, None].expand_as(source)
    place = is_word.cumsum(1) - 1  # which word each token belongs to
    at = torch.arange(source.shape[1], device=source.device).expand_as(source)
    begun = torch.where(is_word, at, 0).cummax(1).values  # where that word's number stands
    numbers = source.new_full((len(source), max(1, int(counts.max()))), PAD)
    numbers[row[is_word], place[is_word]] = source[is_word]
    letter = source >= words
    behind = at - begun  # 1 for the first letter
    longest = int((behind * letter).max())
    letters = source.new_zeros((*numbers.shape, max(1, longest)))
    letters[row[letter], place[letter], behind[letter] - 1] = source[letter] - words + 1
    return numbers, letters, counts


def shape(letters: Tensor) -> Tensor:
    """How a word is written, as 0 or 1: first letter capital, a capital elsewhere, no small letter, a digit, a sign, other than
    ASCII, a single character. (..., L) → (..., 7).
    """
    byte = letters - 1
    upper, lower = (byte >= 65) & (byte <= 90), (byte >= 97) & (byte <= 122)
    digit, far = (byte >= 48) & (byte <= 57), byte >= 128
    sign = (byte >= 0) & ~(upper | lower | digit | far)
    capitals = upper.any(-1) & ~lower.any(-1)
    flags = (
        upper[..., 0],
        upper[..., 1:].any(-1),
        capitals,
        digit.any(-1),
        sign.any(-1),
        far.any(-1),
        (byte >= 0).sum(-1) == 1,
    )
    return torch.stack(flags, -1)


class CharacterFeatures(nn.Module):
    """A convolution over the letters, the largest value of each feature (Ma & Hovy 2016), and the word's shape added to it."""

    def __init__(self, dim: int, width: int, kernel: int) -> None:
        super().__init__()
        self.width = width
        self.table = nn.Embedding(1 + BYTES, dim, padding_idx=0)
        nn.init.uniform_(self.table.weight, -((3 / dim) ** 0.5), (3 / dim) ** 0.5)
        self.table.weight.data[0].zero_()
        self.convolution = nn.Conv1d(dim, width, kernel, padding=kernel // 2)
        self.shape = nn.Linear(SHAPES, width, bias=False)

    def forward(self, letters: Tensor) -> Tensor:
        """Letters (..., L), 0 behind the last → features (..., width)."""
        flat = letters.reshape(-1, letters.shape[-1])
        found = self.convolution(self.table(flat).transpose(1, 2))[..., : flat.shape[1]]  # (words, width, L)
        found = found.masked_fill((flat == 0)[:, None], torch.finfo(found.dtype).min).amax(-1)
        found = torch.relu(found) + self.shape(shape(flat).to(found.dtype))
        return found.reshape(*letters.shape[:-1], self.width)


def hide(numbers: Tensor, share: float) -> Tensor:
    """Words made unknown at random, so that what is said of the unknown, and of letters, is learned."""
    hidden = torch.rand(numbers.shape, device=numbers.device) < share
    return numbers.masked_fill(hidden & (numbers > EOS), UNK)
