"""Sub-word tokens for taggers with a pretrained encoder; a token id says whether the token begins a word.

The first token of a word gets its tag, so the ids of a row must show where words begin. An id below `size`,
the size of the vocabulary, begins a word; the same token inside a word has id + size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property

from regard.data.tokenizer import UNK, Tokenizer
from regard.errors import DataError

MAX_TOKENS = 16  # per word; the rest of a longer word, such as a web address, is dropped


class SubwordTokenizer(Tokenizer):
    """A tokenizer applied word by word; words are separated by spaces."""

    def __init__(self, text: str) -> None:
        """Parse the text of a tokenizer file, which has the inner tokenizer under the key `subwords`."""
        try:
            self._json = json.loads(text)
            self.inner = Tokenizer(json.dumps(self._json["subwords"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"this is not a tokenizer file of regard ({error}); train one or load another"
            ) from None
        self._inner, self.kind, self.size = self.inner._inner, "subwords", len(self.inner)

    @classmethod
    def from_tokenizer(cls, inner: Tokenizer) -> SubwordTokenizer:
        """Wrap a tokenizer, so that it is applied word by word."""
        return cls(json.dumps({"subwords": json.loads(inner.text)}, ensure_ascii=False))

    def encode(self, text: str) -> list[int]:
        return self.encode_pieces([text])[0][0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids for ids, _ in self.encode_pieces(texts)]

    def encode_pieces(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        split = [[word for word in text.split(" ") if word] for text in texts]
        encoded = iter(self.inner.encode_batch([word for words in split for word in words]))
        return [self._joined([next(encoded) for _ in words]) for words in split]

    def _joined(self, words: list[list[int]]) -> tuple[list[int], list[int]]:
        """Concatenate the token ids of words, and return the index of each token's word too.

        A word without tokens, such as a control character, is UNK.
        """
        ids, word_indices = [], []
        for index, word in enumerate(words):
            first, *continuations = word[:MAX_TOKENS] or [UNK]
            ids += [first, *(i + self.size for i in continuations)]
            word_indices += [index] * (1 + len(continuations))
        return ids, word_indices

    def decode(self, ids: Iterable[int]) -> str:
        return self.inner.decode(i % self.size for i in map(int, ids))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return self.inner.tokens(i % self.size for i in map(int, ids))

    @property
    def lowercase(self) -> bool:
        return self.inner.lowercase

    @cached_property
    def _pieces(self) -> list[str]:
        return self.inner._pieces

    def __len__(self) -> int:
        return 2 * self.size

    def __reduce__(self) -> tuple[type[SubwordTokenizer], tuple[str]]:
        return SubwordTokenizer, (self.text,)
