"""The tokenizer of taggers with character features: each word's id, followed by the ids of its UTF-8 bytes.

A tagger recognizes an unknown word by its characters. Words and bytes share one range of ids, so that they
pass through preparation, batches and checkpoints as any tokens do: ids below `len(words)` are words, the 256
ids above are bytes. A word that is lower-cased for the vocabulary keeps its case in its bytes. Of a word
longer than MAX_BYTES, only the first and the last bytes are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from regard.data.tokenizer import EOS, UNK, Tokenizer
from regard.errors import DataError

MAX_BYTES = 24  # kept of a word
BYTES = 256


class WordCharacterTokenizer(Tokenizer):
    """A vocabulary of words and of all bytes."""

    def __init__(self, text: str) -> None:
        """From the text of a file: the word tokenizer under the key `word_characters`."""
        try:
            self._json = json.loads(text)
            self.words = Tokenizer(json.dumps(self._json["word_characters"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"this is not a tokenizer file of regard ({error}); train one or load another"
            ) from None
        self._inner, self.kind = self.words._inner, "word-characters"

    @classmethod
    def from_tokenizer(cls, words: Tokenizer) -> WordCharacterTokenizer:
        """The word-character tokenizer of a word tokenizer."""
        return cls(json.dumps({"word_characters": json.loads(words.text)}, ensure_ascii=False))

    def encode(self, text: str) -> list[int]:
        return self.encode_pieces([text])[0][0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids for ids, _ in self.encode_pieces(texts)]

    def encode_pieces(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        return [
            self._spell(text, ids) for text, ids in zip(texts, self.words.encode_batch(texts), strict=True)
        ]

    def _spell(self, text: str, word_ids: list[int]) -> tuple[list[int], list[int]]:
        ids, pieces = [], []
        words = [word for word in text.split(" ") if word]
        for index, (word, word_id) in enumerate(zip(words, word_ids, strict=True)):
            spelling = _ends(word.encode("utf-8", "replace"))
            ids += [word_id, *(len(self.words) + byte for byte in spelling)]
            pieces += [index] * (1 + len(spelling))
        return ids, pieces

    def decode(self, ids: Iterable[int]) -> str:
        """The words of the bytes; of a long word, its two ends."""
        return " ".join(spelling.decode("utf-8", "replace") for _, spelling in self._parts(ids))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        return [
            self.words.tokens([i])[0] if i < len(self.words) else f"{i - len(self.words):02x}"
            for i in map(int, ids)
        ]

    def _parts(self, ids: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """The id and bytes of each word."""
        words: list[tuple[int, list[int]]] = []
        for i in map(int, ids):
            if not 0 <= i < len(self):
                raise DataError(
                    f"token id {i} is beyond the {len(self)} of this vocabulary; "
                    "the tokenizer belongs to another model"
                )
            if i >= len(self.words):
                words[-1][1].append(i - len(self.words))
            elif i > EOS or i == UNK:
                words.append((i, []))
        return ((word_id, bytes(spelling)) for word_id, spelling in words)

    @property
    def lowercase(self) -> bool:
        return self.words.lowercase

    @cached_property
    def _pieces(self) -> list[str]:
        return self.words._pieces

    def __len__(self) -> int:
        return len(self.words) + BYTES

    def __reduce__(self) -> tuple[type[WordCharacterTokenizer], tuple[str]]:
        return WordCharacterTokenizer, (self.text,)


def _ends(spelling: bytes) -> bytes:
    return (
        spelling if len(spelling) <= MAX_BYTES else spelling[: MAX_BYTES // 2] + spelling[-MAX_BYTES // 2 :]
    )
