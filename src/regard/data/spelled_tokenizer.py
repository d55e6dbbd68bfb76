"""The tokenizer of taggers with character features: each word's id, followed by the ids of its UTF-8 bytes.

A tagger needs to know a word it has never seen by its letters. So that words and letters travel together
through preparation, batches and checkpoints as any tokens do, they share one range of numbers: those below
`len(words)` are words, the 256 above are bytes. A word in lower case for the vocabulary keeps its own case in
its bytes. Of a word longer than MOST bytes, its two ends are spelled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from regard.data.tokenizer import EOS, UNK, Tokenizer
from regard.errors import DataError

MOST = 24  # bytes of a word that are spelled
BYTES = 256


class SpelledTokenizer(Tokenizer):
    """A vocabulary of words and of all bytes."""

    def __init__(self, text: str) -> None:
        """From the text of a file: the word tokenizer under the key `spelled`."""
        try:
            self._json = json.loads(text)
            self.words = Tokenizer(json.dumps(self._json["spelled"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"this is not a tokenizer file of regard ({error}); train one or load another"
            ) from None
        self._inner, self.kind = self.words._inner, "spelled"

    @classmethod
    def over(cls, words: Tokenizer) -> SpelledTokenizer:
        """The spelled tokenizer of a word tokenizer."""
        return cls(json.dumps({"spelled": json.loads(words.text)}, ensure_ascii=False))

    def encode(self, text: str) -> list[int]:
        return self.encode_pieces([text])[0][0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids for ids, _ in self.encode_pieces(texts)]

    def encode_pieces(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        return [
            self._spell(text, ids) for text, ids in zip(texts, self.words.encode_batch(texts), strict=True)
        ]

    def _spell(self, text: str, numbers: list[int]) -> tuple[list[int], list[int]]:
        ids, pieces = [], []
        spelled = [word for word in text.split(" ") if word]
        for place, (word, number) in enumerate(zip(spelled, numbers, strict=True)):
            letters = _ends(word.encode("utf-8", "replace"))
            ids += [number, *(len(self.words) + byte for byte in letters)]
            pieces += [place] * (1 + len(letters))
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
        found: list[tuple[int, list[int]]] = []
        for i in map(int, ids):
            if not 0 <= i < len(self):
                raise DataError(
                    f"token number {i} lies beyond the {len(self)} of this vocabulary; "
                    "the tokenizer is another model's"
                )
            if i >= len(self.words):
                found[-1][1].append(i - len(self.words))
            elif i > EOS or i == UNK:
                found.append((i, []))
        return ((number, bytes(letters)) for number, letters in found)

    @property
    def lowercase(self) -> bool:
        return self.words.lowercase

    @cached_property
    def _pieces(self) -> list[str]:
        return self.words._pieces

    def __len__(self) -> int:
        return len(self.words) + BYTES

    def __reduce__(self) -> tuple[type[SpelledTokenizer], tuple[str]]:
        return SpelledTokenizer, (self.text,)


def _ends(letters: bytes) -> bytes:
    return letters if len(letters) <= MOST else letters[: MOST // 2] + letters[-MOST // 2 :]
