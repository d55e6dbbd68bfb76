"""Text to token ids and back. How each kind is trained is in tokenizer_training.py.

A space is a character like any other and belongs to the word that follows it. A space is prepended to a text
before encoding, so that a word is the same token at the start of a sentence and inside it; decoding removes
it. Nothing is normalized, so decode(encode(text)) is the text: always for byte-bpe; for bpe, unigram and
character if the characters occurred in training (other whitespace becomes a space, other characters UNK); for
word if single spaces separate known words.

Text never encodes to a special token, whatever it spells: their names in the vocabulary contain a space where
no learned piece can, and `tokenizers` does not know them as special. Language tokens are the exception: if a
text starts with `>>de<<` and a space, its first token is that of "de" (Johnson et al. 2017; OPUS-MT).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers

from regard.arguments import one_or_more
from regard.data.tokenizer_training import SPECIALS, TOKENIZERS, TrainingOptions, language_token, numbered
from regard.errors import DataError, OptionError
from regard.files.atomic import write_file

PAD, UNK, BOS, EOS = 0, 1, 2, 3
# Fewer texts than this are encoded one by one: threads cost more, and a process that may fork starts none.
SERIAL = 64
SPELLED = ("bpe", "unigram", "character")  # kinds whose UNK is a character, not a word
_OTHER_SPACE = re.compile(r"[^\S ]")


class Tokenizer:
    """A trained tokenizer. Ids 0 to 3 are PAD, UNK, BOS and EOS.

    >>> tokenizer = regard.Tokenizer.train(["a rose is a rose"], "word", 10)
    >>> tokenizer.encode("a rose")
    [4, 5]
    >>> tokenizer.decode([4, 5])
    'a rose'
    """

    _language_ids: Mapping[str, int] = {}
    example: Any = "a"  # something short to encode

    def __init__(self, text: str) -> None:
        """From the text of a tokenizer file, which is the JSON format of `tokenizers`."""
        try:
            self._file = text
            self._inner = tokenizers.Tokenizer.from_str(text)
            self.kind = _kind(self._inner)
        except Exception as error:  # `tokenizers` raises plain Exception about a text it cannot read
            raise DataError(
                f"this is not a tokenizer file of regard ({_first_line(error)}); train one or load another"
            ) from None
        if [self._inner.id_to_token(i) for i in range(4)] != list(SPECIALS):
            raise DataError(
                "this tokenizer does not have pad, unk, s and /s as its ids 0 to 3; load one that regard made"
            )
        self._inner.no_padding()
        self._inner.no_truncation()
        self._language_ids = _language_ids(self._inner)

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that have a token, in the order of their ids."""
        return tuple(self._language_ids)

    @classmethod
    def labels(cls, lines: Iterable[str]) -> Tokenizer:
        """A vocabulary of labels: each distinct line is an entry, in alphabetical order."""
        inner = tokenizers.Tokenizer(models.WordLevel(numbered(sorted(set(lines))), unk_token=SPECIALS[UNK]))
        return cls(inner.to_str())

    @property
    def entries(self) -> tuple[str, ...]:
        """All tokens but the special ones, by id: the labels or tags that can be predicted."""
        return tuple(self._pieces[len(SPECIALS) :])

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        kind: str = "bpe",
        size: int = 8000,
        *,
        lowercase: bool = False,
        min_count: int = 1,
        languages: Sequence[str] = (),
    ) -> Tokenizer:
        """Learn a vocabulary of at most `size` entries from lines of text, which are read once.

        The same lines give the same vocabulary. A `size` that cannot hold the distinct characters of the text
        (256 bytes for byte-bpe) and 4 special tokens is refused.

        Args:
            lines: the text to learn from.
            kind: a name in `TOKENIZERS`: bpe, byte-bpe, unigram, word, character or word-characters.
            size: largest size of the vocabulary, special tokens included.
            lowercase: convert all text to lower case, in training and when encoding.
            min_count: words seen less often become UNK (kinds word and word-characters).
            languages: codes of languages that get a token, such as "de" for `>>de<<`. The tokens at the start
                of the lines are not learned from.
        """
        if kind not in TOKENIZERS:
            raise OptionError(f"the kind of a tokenizer is one of {', '.join(TOKENIZERS)}, got {kind!r}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 5:
            raise OptionError(
                f"the size of a vocabulary is an integer of at least 5, 4 of them special, got {size!r}"
            )
        check_languages(languages)
        if languages:
            lines = (split_language(line, languages)[1] for line in lines)
        # Rust's lower case, which encoding uses, differs from Python's in a few letters.
        lower = normalizers.Lowercase()
        lowered = (lower.normalize_str(line) for line in lines) if lowercase else iter(lines)
        options = TrainingOptions(size, lowercase, min_count, tuple(languages))
        return cls.read(TOKENIZERS[kind](lowered, options))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise DataError(f"there is no tokenizer file {path}; check the path") from None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"the tokenizer file {path} cannot be read: {_first_line(error)}") from None
        try:
            return cls.read(text)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    @classmethod
    def read(cls, text: str) -> Tokenizer:
        """Make a tokenizer from the text of its file, whatever its kind."""
        if text.startswith('{"word_characters":'):
            from regard.data.word_character_tokenizer import WordCharacterTokenizer

            return WordCharacterTokenizer(text)
        if text.startswith('{"subwords":'):
            from regard.data.subword_tokenizer import SubwordTokenizer

            return SubwordTokenizer(text)
        if text.startswith('{"sentencepiece":'):
            from regard.data.sentencepiece_tokenizer import SentencePieceTokenizer

            return SentencePieceTokenizer(text)
        if text.startswith('{"frames":'):
            from regard.data.frame_encoder import FrameEncoder

            return FrameEncoder(text)
        return cls(text)

    def save(self, path: str | Path) -> None:
        """Write a JSON file, which the library `tokenizers` can read too."""
        write_file(Path(path), self.text + "\n")

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without BOS and EOS."""
        language, text = self._split_language(text)
        return language + self._inner.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode several texts; many are encoded in parallel by threads."""
        if len(texts) < SERIAL:
            return [self.encode(text) for text in texts]
        split = [self._split_language(text) for text in texts]
        encoded = self._inner.encode_batch_fast([text for _, text in split], add_special_tokens=False)
        return [language + encoding.ids for (language, _), encoding in zip(split, encoded, strict=True)]

    def encode_pieces(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """For each text its token ids, and for each token the index of its pre-token (the unit that merges
        stay within).
        """
        split = [self._split_language(text) for text in texts]
        encoded = self._inner.encode_batch([text for _, text in split], add_special_tokens=False)
        return [
            (language + encoding.ids, [-1] * len(language) + [piece or 0 for piece in encoding.word_ids])
            for (language, _), encoding in zip(split, encoded, strict=True)
        ]

    def inputs(self, value: Any) -> tuple[list[Any], bool]:
        """One text or several, as a list; and whether it was one. A `FrameEncoder` also takes arrays."""
        return one_or_more("texts", value)

    def is_blank(self, text: Any) -> bool:
        """True if there is nothing to encode."""
        return not text.strip()

    def split_words(self, text: str) -> list[str]:
        """The words that a tagger tags."""
        return text.split(" ")

    def spans(self, text: str) -> list[tuple[int, int]]:
        """For each token of `encode(text)` the start and the end of its characters in the text."""
        language, rest = self._split_language(text)
        skipped = len(text) - len(rest)
        spans = [(0, skipped)] * len(language)
        offsets = self._inner.encode(rest, add_special_tokens=False).offsets
        return spans + [(start + skipped, end + skipped) for start, end in offsets]

    def _split_language(self, text: str) -> tuple[list[int], str]:
        """The id of the language token at the start of a text, if any, and the rest with known spaces."""
        code, rest = split_language(text, self._language_ids)
        return ([] if code is None else [self._language_ids[code]]), self.with_known_spaces(rest)

    def with_known_spaces(self, text: str) -> str:
        """The text with a space for each tab, line end or other whitespace that the vocabulary lacks."""
        if self.kind not in SPELLED or not _OTHER_SPACE.search(text):
            return text
        return _OTHER_SPACE.sub(lambda match: match[0] if match[0] in self.vocabulary else " ", text)

    def unknown_characters(self, texts: Iterable[str]) -> set[str]:
        """The characters that are encoded as UNK; none for kinds that read bytes or whose UNK is a word."""
        if self.kind not in SPELLED:
            return set()
        found = {c for text in texts for c in set(self._split_language(text)[1])} - self.vocabulary.keys()
        return {c for c in found if not self.lowercase or self.encode(c)[-1] == UNK}

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids without PAD, BOS, EOS and languages; UNK is � or, for kind word, <unk>."""
        pieces, size, skipped = self._pieces, len(self), self._skipped
        try:
            kept = [pieces[i] for i in map(int, ids) if i not in skipped]
        except IndexError:
            raise DataError(
                f"a token id is beyond the {size} of this vocabulary; the tokenizer belongs to another model"
            ) from None
        if self.kind in ("word", "label"):
            return " ".join(kept)
        if self.kind == "character":
            return "".join(kept)
        if self.kind == "wordpiece":
            return " ".join(kept).replace(" ##", "")
        text = "".join(kept) if self.kind != "byte-bpe" else self._from_bytes(kept)
        return text.removeprefix(" ")

    @cached_property
    def _skipped(self) -> set[int]:
        """Ids that are not part of a text."""
        return {PAD, BOS, EOS, *self._language_ids.values()}

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The token of each id, for display: spaces as ▁, special tokens by name."""
        return [self._token(i) for i in map(int, ids)]

    def _token(self, i: int) -> str:
        if i <= EOS:
            return ("<pad>", "<unk>", "<s>", "</s>")[i]
        piece = self._pieces[i]
        if i in self._language_ids.values():
            return piece[2:-2]
        return (self._from_bytes([piece]) if self.kind == "byte-bpe" else piece).replace(" ", "▁")

    @property
    def lowercase(self) -> bool:
        """True if text is converted to lower case before it is encoded."""
        return "Lowercase" in _state(self._inner.normalizer)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer file: equal fingerprints encode alike."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token to id, as `tokenizers` spells the tokens."""
        return self._inner.get_vocab()

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """The merges of bpe, in the order in which they were learned; empty for other kinds."""
        return [(left, right) for left, right in self._json["model"].get("merges", [])]

    def __len__(self) -> int:
        return self._inner.get_vocab_size()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {len(self)} entries{', lower case' if self.lowercase else ''})"

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[str]]:
        return Tokenizer, (self.text,)

    @cached_property
    def _json(self) -> dict[str, Any]:
        """The file as an object. Parsing takes longer than everything else in loading, so it is done when
        needed.
        """
        return json.loads(self._file)

    @cached_property
    def text(self) -> str:
        """The text of the file that `save` writes."""
        return json.dumps(self._json, ensure_ascii=False, separators=(",", ":"))

    @cached_property
    def _pieces(self) -> list[str]:
        pieces = [""] * len(self)
        for piece, i in self.vocabulary.items():
            pieces[i] = piece
        unknown = {"word": "<unk>", "byte-bpe": "".join(_BYTES[b] for b in "\ufffd".encode())}
        pieces[UNK] = unknown.get(self.kind, "\ufffd")
        return pieces

    @staticmethod
    def _from_bytes(pieces: Iterable[str]) -> str:
        return bytes(_CHARACTERS[c] for piece in pieces for c in piece).decode("utf-8", errors="replace")


def _language_ids(inner: tokenizers.Tokenizer) -> dict[str, int]:
    """The ids of the language tokens by code."""
    start, end = language_token("|").split("|")
    ids = {
        token[len(start) : -len(end)]: i for token, i in inner.get_vocab().items() if token.startswith(start)
    }
    return dict(sorted(ids.items(), key=lambda item: item[1]))


def split_language(text: str, codes: Container[str]) -> tuple[str | None, str]:
    """Split `>>de<< Hello` into ("de", "Hello"); the code is None if the text does not start with one."""
    if not text.startswith(">>"):
        return None, text
    tag, _, rest = text.partition(" ")
    code = tag[2:-2]
    return (code, rest) if tag.endswith("<<") and code in codes else (None, text)


def check_languages(codes: Sequence[str]) -> None:
    """Raise an OptionError if the codes cannot be those of language tokens."""
    for code in codes:
        if not isinstance(code, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", code):
            raise OptionError(f"a language is a code such as 'de' or 'pt_br', got {code!r}")
    if len(set(codes)) < len(codes):
        raise OptionError(f"each language can be given once, got {', '.join(codes)}")


def _byte_characters() -> dict[int, str]:
    """GPT-2's table of byte-level BPE: a byte is itself where it prints, else a character from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


_BYTES = _byte_characters()
_CHARACTERS = {character: byte for byte, character in _BYTES.items()}


def _kind(inner: tokenizers.Tokenizer) -> str:
    """The kind, which decides how ids are decoded, from the model and the pre-tokenizer."""
    model, split = type(inner.model).__name__, _state(inner.pre_tokenizer)
    if model == "BPE":
        return "character" if not split else "byte-bpe" if "ByteLevel" in split else "bpe"
    if model == "WordLevel" and not split:
        return "label"
    # WordPiece is imported, never trained.
    return {"Unigram": "unigram", "WordLevel": "word", "WordPiece": "wordpiece"}[model]


def _state(part: Any) -> str:
    """The JSON of a normalizer or pre-tokenizer; empty if there is none."""
    return "" if part is None else part.__getstate__().decode()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
