"""Text to token numbers and back: bpe, byte-bpe, unigram, word and character, learned and run by `tokenizers`.

A space is a character like any other here, and belongs to the word that follows it. A text is encoded with one space put in
front, so that a word is the same token at the start of a sentence and inside it, and decoding takes that one space away again.
Nothing is normalised, so decode(encode(text)) is the text: always for byte-bpe; for bpe, unigram and character when the
characters occurred in training (another one becomes UNK); for word when single spaces stand between known words.

The four special numbers are never the result of text, whatever it spells: their names in the vocabulary hold a space where no
learned piece can have one, and `tokenizers` is not told about them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import DataError, OptionError
from regard.files.atomic import write_file

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("< pad >", "< unk >", "< s >", "< /s >")
KINDS = ("bpe", "byte-bpe", "unigram", "word", "character")
EVERY_KIND = (*KINDS, "spelled")  # words with their letters, see `spelling`
SERIAL = 64  # so few texts are encoded one by one: waking the threads costs more, and a process that may fork stays without any

# Letters with their marks, digits, other signs: each with the space before it, never mixed in one piece. Spaces in a row are
# pieces of their own except the last, which belongs to what follows. Every character falls under one of these.
_PIECES = Regex(r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+")


class Tokenizer:
    """A vocabulary that was learned, with PAD, UNK, BOS and EOS as its numbers 0 to 3."""

    def __init__(self, text: str) -> None:
        """From the text of a tokenizer file: the JSON format of `tokenizers`, with nothing added to it."""
        try:
            self._json = json.loads(text)
            self._inner = tokenizers.Tokenizer.from_str(text)
            self.kind = _kind(self._json)
        except Exception as error:  # `tokenizers` raises plain Exception about a text it cannot read
            raise DataError(
                f"this is not a tokenizer file of regard ({_first_line(error)}); train one or load another"
            ) from None
        if [self._inner.id_to_token(i) for i in range(4)] != list(SPECIALS):
            raise DataError(
                "this tokenizer does not have pad, unk, s and /s as its numbers 0 to 3; load one that regard made"
            )
        self._inner.no_padding()
        self._inner.no_truncation()

    @classmethod
    def labels(cls, lines: Iterable[str]) -> Tokenizer:
        """A vocabulary of whole lines: each different one is an entry, in the order of the alphabet. `decode` is its inverse."""
        inner = tokenizers.Tokenizer(models.WordLevel(_numbered(sorted(set(lines))), unk_token=SPECIALS[UNK]))
        return cls(inner.to_str())

    @property
    def entries(self) -> tuple[str, ...]:
        """What is not special, by number: the labels or tags that can be predicted."""
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
    ) -> Tokenizer:
        """Learn a vocabulary of at most `size` entries, specials included, from lines of text that are read once.

        The same lines give the same vocabulary. A `size` below the number of distinct characters (256 bytes for byte-bpe, plus
        4) is refused before learning starts: it could not spell the text. `min_count` is for whole words.
        """
        if kind not in EVERY_KIND:
            raise OptionError(f"the kind of a tokenizer is one of {', '.join(EVERY_KIND)}, got {kind!r}")
        if isinstance(size, bool) or not isinstance(size, int) or size < 5:
            raise OptionError(
                f"the size of a vocabulary is a whole number of at least 5, 4 of them special, got {size!r}"
            )
        if kind == "spelled":
            from regard.data.character_ids import WordBytes

            return WordBytes.over(cls.train(lines, "word", size, lowercase=lowercase, min_count=min_count))
        lower = (
            normalizers.Lowercase()
        )  # Rust's lower case differs from Python's in a few letters, and is what encoding uses
        lowered = (lower.normalize_str(line) for line in lines) if lowercase else iter(lines)
        words = partial(_learn_words, min_count=min_count)
        learn = {"word": words, "character": _learn_characters, "unigram": _learn_unigram}.get(
            kind, _learn_bpe
        )
        return cls(learn(lowered, size, kind == "byte-bpe", lowercase))

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
        """The tokenizer of the text of a file, whatever its kind."""
        if text.startswith('{"spelled":'):
            from regard.data.character_ids import WordBytes

            return WordBytes(text)
        if text.startswith('{"subwords":'):
            from regard.data.subwords import Subwords

            return Subwords(text)
        return cls(text)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as one JSON file, which `tokenizers` itself can read too."""
        write_file(Path(path), self.text + "\n")

    def encode(self, text: str) -> list[int]:
        """The numbers of a text, without special ones at its ends."""
        return self._inner.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text; many are encoded in parallel by threads."""
        if len(texts) < SERIAL:
            return [self.encode(text) for text in texts]
        return [found.ids for found in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_pieces(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """For each text its numbers, and for each number which piece it lies in; what merging stays inside is a piece."""
        found = self._inner.encode_batch(list(texts), add_special_tokens=False)
        return [(each.ids, [0 if piece is None else piece for piece in each.word_ids]) for each in found]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some numbers. PAD, BOS and EOS are nothing; UNK is � or, for whole words, <unk>."""
        pieces, size = self._pieces, len(self)
        try:
            kept = [pieces[i] for i in map(int, ids) if i > EOS or i == UNK]
        except IndexError:
            raise DataError(
                f"a token number lies beyond the {size} of this vocabulary; the tokenizer is another model's"
            ) from None
        if self.kind in ("word", "label"):
            return " ".join(kept)
        if self.kind == "character":
            return "".join(kept)
        if self.kind == "wordpiece":
            return " ".join(kept).replace(" ##", "")
        text = "".join(kept) if self.kind != "byte-bpe" else self._from_bytes(kept)
        return text.removeprefix(" ")

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Each number's piece of text, to be looked at: spaces as ▁, special ones by name."""
        names = ("<pad>", "<unk>", "<s>", "</s>")
        shown = []
        for i in map(int, ids):
            piece = (
                names[i]
                if i <= EOS
                else self._pieces[i]
                if self.kind != "byte-bpe"
                else self._from_bytes([self._pieces[i]])
            )
            shown.append(piece if i <= EOS else piece.replace(" ", "▁"))
        return shown

    @property
    def lowercase(self) -> bool:
        """Whether text is put into lower case before it is encoded."""
        return "Lowercase" in json.dumps(self._json["normalizer"])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides how text is encoded."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Each piece, as `tokenizers` spells it, and its number."""
        return self._inner.get_vocab()

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """The pairs that bpe merges, the first learned first; empty for the kinds that do not merge."""
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
    def text(self) -> str:
        """The text of the file that `save` writes."""
        return json.dumps(self._json, ensure_ascii=False, separators=(",", ":"))

    @cached_property
    def _pieces(self) -> list[str]:
        pieces = [""] * len(self)
        for piece, number in self.vocabulary.items():
            pieces[number] = piece
        unknown = {"word": "<unk>", "byte-bpe": "".join(_BYTES[b] for b in "\ufffd".encode())}
        pieces[UNK] = unknown.get(self.kind, "\ufffd")
        return pieces

    @staticmethod
    def _from_bytes(pieces: Iterable[str]) -> str:
        return bytes(_CHARACTERS[c] for piece in pieces for c in piece).decode("utf-8", errors="replace")


def _byte_characters() -> dict[int, str]:
    """The character that byte-level BPE writes for each byte (GPT-2's table): itself where it prints, else one from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


_BYTES = _byte_characters()
_CHARACTERS = {character: byte for byte, character in _BYTES.items()}


def _kind(found: dict[str, Any]) -> str:
    """The kind is written in the parts of the tokenizer, so that its file needs no header of ours."""
    model, cut = found["model"]["type"], json.dumps(found["pre_tokenizer"])
    if model == "BPE":
        return "character" if cut == "null" else "byte-bpe" if "ByteLevel" in cut else "bpe"
    if model == "WordLevel" and cut == "null":
        return "label"
    return {"Unigram": "unigram", "WordLevel": "word", "WordPiece": "wordpiece"}[
        model
    ]  # the last is imported, never learned


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _counted(lines: Iterator[str], alphabet: set[str], check: int | None) -> Iterator[str]:
    """Pass lines on and note their characters; at the end, before anything is learned, see that they fit into the vocabulary."""
    for line in lines:
        alphabet.update(line)
        yield line
    if not alphabet:
        raise DataError("there is no text to learn a vocabulary from; check that the files are not empty")
    if check is not None:
        _check_alphabet(len(alphabet | {" "}), check)


def _check_alphabet(letters: int, size: int) -> None:
    if letters + len(SPECIALS) > size:
        raise DataError(
            f"a vocabulary of {size} cannot hold the {letters} different characters of the text and 4 special numbers; "
            f"set tokenizer.size to more than {letters + len(SPECIALS)}, or take kind byte-bpe, which needs 260"
        )


def _learn_bpe(lines: Iterator[str], size: int, bytewise: bool, lowercase: bool) -> str:
    """Sennrich et al. 2016: merge the most frequent pair of neighbours, again and again; over bytes or over characters."""
    if bytewise and size < 256 + len(SPECIALS):
        raise DataError(
            f"a byte-bpe vocabulary of {size} cannot hold 256 bytes and 4 special numbers; set tokenizer.size to more"
        )
    inner = tokenizers.Tokenizer(models.BPE(unk_token=SPECIALS[UNK]))
    _surround(inner, bytewise, lowercase)
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIALS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if bytewise else [" "],
    )  # fmt: skip
    inner.train_from_iterator(_counted(lines, set(), None if bytewise else size), trainer)
    return _without_added(inner)


def _learn_unigram(lines: Iterator[str], size: int, _: bool, lowercase: bool) -> str:
    """Kudo 2018: a large set of pieces, thinned out by how much each is worth to the likelihood of the text."""
    inner = tokenizers.Tokenizer(models.Unigram())
    _surround(inner, False, lowercase)
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        unk_token=SPECIALS[UNK],
        initial_alphabet=[" "],
        show_progress=False,
    )
    inner.train_from_iterator(_counted(lines, set(), size), trainer)
    found = json.loads(_without_added(inner))
    # Threads add up in changing order, which moves the last digits: round them, and order equal scores by spelling.
    pieces = [(piece, round(score, 6)) for piece, score in found["model"]["vocab"][len(SPECIALS) :]]
    pieces.sort(key=lambda piece: (-piece[1], piece[0]))
    found["model"]["vocab"] = [[name, 0.0] for name in SPECIALS] + [list(piece) for piece in pieces]
    return json.dumps(found)


def _learn_words(lines: Iterator[str], size: int, _: bool, lowercase: bool, min_count: int = 1) -> str:
    """The most frequent words, split at spaces and nowhere else; of equally frequent ones the first in the alphabet.

    Words seen fewer than `min_count` times are left to UNK, which thus is met in training.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split(" "))
    del counts[""]
    if not counts:
        raise DataError("there is no text to learn a vocabulary from; check that the files are not empty")
    often = [word for word in counts if counts[word] >= min_count]
    kept = sorted(often, key=lambda word: (-counts[word], word))[: size - len(SPECIALS)]
    inner = tokenizers.Tokenizer(models.WordLevel(_numbered(kept), unk_token=SPECIALS[UNK]))
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    if lowercase:
        inner.normalizer = normalizers.Lowercase()
    return inner.to_str()


def _learn_characters(lines: Iterator[str], size: int, _: bool, lowercase: bool) -> str:
    """Every character that occurs, and the end of a line: BPE without merges."""
    alphabet: set[str] = set()
    for _line in _counted(lines, alphabet, None):
        pass
    alphabet.add("\n")  # readers hand over lines without it, and language models predict it
    _check_alphabet(len(alphabet), size)
    inner = tokenizers.Tokenizer(models.BPE(_numbered(sorted(alphabet)), [], unk_token=SPECIALS[UNK]))
    inner.decoder = decoders.Fuse()
    if lowercase:
        inner.normalizer = normalizers.Lowercase()
    return inner.to_str()


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    return {piece: i for i, piece in enumerate((*SPECIALS, *pieces))}


def _surround(inner: tokenizers.Tokenizer, bytewise: bool, lowercase: bool) -> None:
    """What stands before and behind the model: lower case, the space in front, the cut into pieces, and the way back."""
    before = [normalizers.Lowercase()] if lowercase else []
    inner.normalizer = normalizers.Sequence([*before, normalizers.Prepend(" ")])
    cut = pre_tokenizers.Split(_PIECES, "isolated")
    inner.pre_tokenizer = (
        pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        if bytewise
        else cut
    )
    inner.decoder = decoders.Sequence(
        [decoders.ByteLevel() if bytewise else decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def _without_added(inner: tokenizers.Tokenizer) -> str:
    """Trainers make special tokens that are recognised inside text; they stay in the vocabulary and lose that."""
    found = json.loads(inner.to_str())
    found["added_tokens"] = []
    return json.dumps(found)
