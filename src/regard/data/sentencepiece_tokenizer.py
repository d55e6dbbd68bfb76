"""The tokenizer of an imported model: pieces of SentencePiece, with the ids of another vocabulary.

A SentencePiece model splits a text into pieces, and the vocabulary gives their ids; a piece that it does not
have is UNK. Marian works like this: one vocabulary for both languages. With byte fallback, an unknown
character is the pieces of its UTF-8 bytes, such as <0xE2>.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from regard.data.sentencepiece_segmentation import SPACE, Bpe, CharacterMap, TextNormalizer, Unigram
from regard.data.tokenizer import EOS, SPECIALS, UNK, Tokenizer
from regard.errors import DataError

SEGMENTERS = {"unigram": Unigram, "bpe": Bpe}


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model and a vocabulary.

    The file has three keys: `sentencepiece`, the model (see `interchange/sentencepiece.py`); `vocabulary`,
    the pieces by id, after the four special tokens; `languages`, the codes of language tokens, for example
    "fra" of `>>fra<<`.
    """

    def __init__(self, text: str) -> None:
        try:
            self._json = json.loads(text)
            model, names = self._json["sentencepiece"], self._json["vocabulary"]
            types = {name: dict(model[name]) for name in ("pieces", "user_defined", "unused")}
            self._segmenter = SEGMENTERS[model["kind"]](*types.values())
            self._normalizer = TextNormalizer(
                CharacterMap(unpacked(model["rules"])), tuple(types["user_defined"]), **model["normalizer"]
            )
            self._byte_fallback = bool(model["byte_fallback"])
            self._names: list[str] = [*SPECIALS, *names]
            self._ids = {name: i for i, name in enumerate(self._names) if name and i >= len(SPECIALS)}
            self._language_ids = {code: self._ids.pop(f">>{code}<<") for code in self._json["languages"]}
        except (ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
            raise DataError(
                f"this is not a tokenizer file of regard ({error}); load the one that `regard import` wrote"
            ) from None
        self.kind = "sentencepiece"

    @classmethod
    def from_model(
        cls, model: Mapping[str, Any], names: Sequence[str], languages: Sequence[str] = ()
    ) -> SentencePieceTokenizer:
        """The tokenizer of a SentencePiece model; `names` are the pieces of the ids from 4 on."""
        definition = {"sentencepiece": model, "vocabulary": list(names), "languages": list(languages)}
        return cls(json.dumps(definition, ensure_ascii=False))

    @property
    def definition(self) -> dict[str, Any]:
        """The SentencePiece model as the file has it."""
        return self._json["sentencepiece"]

    def _split_language(self, text: str) -> tuple[list[int], str]:
        code, separator, rest = text.removeprefix(">>").partition("<<")
        if text.startswith(">>") and separator and code in self._language_ids:
            return [self._language_ids[code]], rest
        return [], text

    def encode(self, text: str) -> list[int]:
        language, rest = self._split_language(text)
        pieces = self._segmenter.split(self._normalizer(rest))
        if self._byte_fallback:
            pieces = [name for piece in pieces for name in self._with_bytes(piece)]
        return language + [self._ids.get(piece, UNK) for piece in pieces]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_pieces(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        encoded = []
        for text in texts:
            ids, words = self.encode(text), []
            for i in ids:
                begins = not words or self._names[i].startswith(SPACE)
                words.append((words[-1] if words else -1) + begins)
            encoded.append((ids, words))
        return encoded

    def spans(self, text: str) -> list[tuple[int, int]]:
        language, rest = self._split_language(text)
        skipped, position = len(text) - len(rest), 0
        spans = [(0, skipped)] * len(language)
        normalized, origins = self._normalizer.with_spans(rest)
        for piece in self._segmenter.split(normalized):
            is_split = self._byte_fallback and piece not in self._segmenter.known
            for unit in piece if is_split else [piece]:  # the characters of an unknown piece, or the piece
                covered = origins[position : position + len(unit)]
                position += len(unit)
                count = len(self._with_bytes(unit)) if self._byte_fallback else 1
                spans += [(skipped + covered[0][0], skipped + covered[-1][1])] * count
        return spans

    def _with_bytes(self, piece: str) -> list[str]:
        """Return the piece, or the pieces of its bytes if it is unknown."""
        return [piece] if piece in self._segmenter.known else [f"<0x{b:02X}>" for b in piece.encode()]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, without PAD, BOS, EOS and languages, as SentencePiece decodes; UNK is �."""
        try:
            parts = [self.bytes_of(i) for i in map(int, ids) if i not in self._skipped]
        except IndexError:
            raise DataError(
                f"a token id is beyond the {len(self)} of this vocabulary; the tokenizer belongs to another "
                "model"
            ) from None
        return _decode(b"".join(parts)).strip()

    def bytes_of(self, i: int) -> bytes:
        """What a token adds to the text, in UTF-8."""
        name = self._pieces[i]
        if self._byte_fallback and len(name) == 6 and name.startswith("<0x"):
            return bytes([int(name[3:5], 16)])
        return name.encode()

    def _token(self, i: int) -> str:
        return ("<pad>", "<unk>", "<s>", "</s>")[i] if i <= EOS else self._names[i]

    @property
    def lowercase(self) -> bool:
        return False

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self._names)}

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        return []

    @cached_property
    def _pieces(self) -> list[str]:
        pieces = [name.replace(SPACE, " ") for name in self._names]
        pieces[UNK] = "\ufffd"
        return pieces

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> tuple[type[SentencePieceTokenizer], tuple[str]]:
        return SentencePieceTokenizer, (self.text,)


def _decode(data: bytes) -> str:
    """Decode UTF-8; as SentencePiece does, write one � for each byte that belongs to no character."""
    text = ""
    while data:
        try:
            return text + data.decode()
        except UnicodeDecodeError as error:
            text += data[: error.start].decode() + "\ufffd"
            data = data[error.start + 1 :]
    return text


def packed(data: bytes) -> str:
    """Return bytes as text for a JSON file."""
    return base64.b64encode(zlib.compress(data)).decode()


def unpacked(text: str) -> bytes:
    """Return the bytes that `packed` turned into text."""
    return zlib.decompress(base64.b64decode(text, validate=True))
