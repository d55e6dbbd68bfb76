"""How each kind of tokenizer is trained: bpe, byte-bpe, unigram, word, character and word-characters.

A kind is a function from lines of text and `TrainingOptions` to a tokenizer, registered in `TOKENIZERS`:

    @TOKENIZERS.add("word")
    def train_words(lines, options): ...

It returns the JSON text of a `tokenizers.Tokenizer` whose vocabulary starts with `SPECIALS`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import DataError
from regard.registry import Registry

UNK = 1
SPECIALS = ("< pad >", "< unk >", "< s >", "< /s >")

# A piece is a run of letters with their combining marks, of digits, or of other characters, never mixed, each
# with the space before it. In a run of whitespace, all but the last character form a piece; the last belongs
# to what follows. Every character is covered.
_PIECES = Regex(r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+")


@dataclass(frozen=True)
class TrainingOptions:
    """Options of `Tokenizer.train`. Lines arrive in lower case already; `lowercase` makes the tokenizer do
    the same.
    """

    size: int = 8000  # entries of the vocabulary, special tokens included; an upper bound
    lowercase: bool = False
    min_count: int = 1  # words seen less often are UNK
    languages: tuple[str, ...] = ()  # each gets a language token

    @property
    def special_tokens(self) -> list[str]:
        """The names at the start of the vocabulary."""
        return [*SPECIALS, *map(language_token, self.languages)]


def language_token(code: str) -> str:
    """The name of a language's token in the vocabulary; its space keeps it apart from learned pieces."""
    return f"< >>{code}<< >"


TOKENIZERS: Registry[Callable[[Iterator[str], TrainingOptions], str]] = Registry("tokenizer")


@TOKENIZERS.add("bpe")
def train_bpe(lines: Iterator[str], options: TrainingOptions) -> str:
    """Byte-pair encoding over characters (Sennrich et al. 2016)."""
    return _train_bpe(_checked(lines, options.size), options, [" "], bytewise=False)


@TOKENIZERS.add("byte-bpe")
def train_byte_bpe(lines: Iterator[str], options: TrainingOptions) -> str:
    """Byte-pair encoding over UTF-8 bytes (Radford et al. 2019): no text is unknown."""
    if options.size < 256 + len(SPECIALS):
        raise DataError(
            f"a byte-bpe vocabulary of {options.size} cannot hold 256 bytes and 4 special tokens; "
            "set tokenizer.size to more"
        )
    return _train_bpe(_checked(lines, None), options, pre_tokenizers.ByteLevel.alphabet(), bytewise=True)


def _train_bpe(lines: Iterator[str], options: TrainingOptions, alphabet: list[str], *, bytewise: bool) -> str:
    inner = tokenizers.Tokenizer(models.BPE(unk_token=SPECIALS[UNK]))
    _set_steps(inner, options.lowercase, bytewise=bytewise)
    trainer = trainers.BpeTrainer(
        vocab_size=options.size,
        special_tokens=options.special_tokens,
        show_progress=False,
        initial_alphabet=alphabet,
    )
    inner.train_from_iterator(lines, trainer)
    return _without_added_tokens(inner)


@TOKENIZERS.add("unigram")
def train_unigram(lines: Iterator[str], options: TrainingOptions) -> str:
    """Unigram language model (Kudo 2018): a large set of pieces, pruned by their contribution to the
    likelihood.
    """
    inner = tokenizers.Tokenizer(models.Unigram())
    _set_steps(inner, options.lowercase, bytewise=False)
    trainer = trainers.UnigramTrainer(
        vocab_size=options.size,
        special_tokens=options.special_tokens,
        unk_token=SPECIALS[UNK],
        initial_alphabet=[" "],
        show_progress=False,
    )
    inner.train_from_iterator(_checked(lines, options.size), trainer)
    trained = json.loads(_without_added_tokens(inner))
    # Threads sum in varying order, which changes the last digits: round, and order equal scores by spelling.
    special = options.special_tokens
    pieces = [(piece, round(score, 6)) for piece, score in trained["model"]["vocab"][len(special) :]]
    pieces.sort(key=lambda piece: (-piece[1], piece[0]))
    trained["model"]["vocab"] = [[name, 0.0] for name in special] + [list(piece) for piece in pieces]
    return json.dumps(trained)


@TOKENIZERS.add("word")
def train_words(lines: Iterator[str], options: TrainingOptions) -> str:
    """The most frequent words, split at spaces only; ties in alphabetical order.

    Words seen fewer than `min_count` times become UNK, so that UNK occurs in training.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split(" "))
    del counts[""]
    if not counts:
        raise DataError("there is no text to learn a vocabulary from; check that the files are not empty")
    frequent = [word for word in counts if counts[word] >= options.min_count]
    by_frequency = sorted(frequent, key=lambda word: (-counts[word], word))
    vocabulary = [*options.special_tokens, *by_frequency][: options.size]
    inner = tokenizers.Tokenizer(models.WordLevel(_ids(vocabulary), unk_token=SPECIALS[UNK]))
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    if options.lowercase:
        inner.normalizer = normalizers.Lowercase()
    return inner.to_str()


@TOKENIZERS.add("character")
def train_characters(lines: Iterator[str], options: TrainingOptions) -> str:
    """Every character that occurs, and the newline: BPE without merges."""
    alphabet: set[str] = set()
    for _ in _checked(lines, None, alphabet):
        pass
    alphabet.add("\n")  # readers return lines without it, and language models predict it
    _check_alphabet(len(alphabet), options.size)
    vocabulary = _ids([*options.special_tokens, *sorted(alphabet)])
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token=SPECIALS[UNK]))
    inner.decoder = decoders.Fuse()
    if options.lowercase:
        inner.normalizer = normalizers.Lowercase()
    return inner.to_str()


@TOKENIZERS.add("word-characters")
def train_word_characters(lines: Iterator[str], options: TrainingOptions) -> str:
    """Words, each followed by the bytes of its spelling, for taggers; see word_character_tokenizer.py."""
    return f'{{"word_characters":{train_words(lines, options)}}}'


def numbered(pieces: Iterable[str]) -> dict[str, int]:
    """A vocabulary: the special tokens, then the pieces."""
    return _ids((*SPECIALS, *pieces))


def _ids(tokens: Iterable[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(tokens)}


def _checked(lines: Iterator[str], size: int | None, alphabet: set[str] | None = None) -> Iterator[str]:
    """Yield the lines and collect their characters; at the end, check that they fit into a vocabulary of
    `size`.
    """
    alphabet = set() if alphabet is None else alphabet
    for line in lines:
        alphabet.update(line)
        yield line
    if not alphabet:
        raise DataError("there is no text to learn a vocabulary from; check that the files are not empty")
    if size is not None:
        _check_alphabet(len(alphabet | {" "}), size)


def _check_alphabet(characters: int, size: int) -> None:
    needed = characters + len(SPECIALS)
    if needed > size:
        raise DataError(
            f"a vocabulary of {size} cannot hold the {characters} different characters of the text and 4 "
            f"special tokens; set tokenizer.size to more than {needed}, or kind to byte-bpe, which needs 260"
        )


def _set_steps(inner: tokenizers.Tokenizer, lowercase: bool, *, bytewise: bool) -> None:
    """Set the steps around the model: lower case, leading space, the split into pieces, the decoder."""
    before = [normalizers.Lowercase()] if lowercase else []
    inner.normalizer = normalizers.Sequence([*before, normalizers.Prepend(" ")])
    split = pre_tokenizers.Split(_PIECES, "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes]) if bytewise else split
    join = decoders.ByteLevel() if bytewise else decoders.Fuse()
    inner.decoder = decoders.Sequence([join, decoders.Strip(" ", 1, 0)])


def _without_added_tokens(inner: tokenizers.Tokenizer) -> str:
    """Trainers make special tokens that are recognized inside text; keep them in the vocabulary only."""
    trained = json.loads(inner.to_str())
    trained["added_tokens"] = []
    return json.dumps(trained)
