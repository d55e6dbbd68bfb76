"""Constraints on the output: a prefix, required and forbidden phrases, no repeated n-grams, a minimum
length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import EOS, UNK
from regard.decoding.strategy import Integers
from regard.errors import OptionError

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Constraints:
    """What every output must and must not contain, as text.

    >>> constraints = regard.Constraints(prefix="Da", no_repeat=3)
    >>> regard.translate("I see a dog.", "tatoeba-en-de-bahdanau", beam=4, constraints=constraints)
    'Da sehe ich einen Hund.'

    Args:
        prefix: the beginning of every output; or a list with one for each text.
        required: phrases that every output contains; or a list with one such list for each text.
        forbidden: phrases that no output contains.
        no_repeat: no n-gram of this many tokens occurs twice in an output; 0 is off.
        min_length: minimum number of tokens.
    """

    prefix: str | Sequence[str] = ""
    required: Sequence[str] | Sequence[Sequence[str]] = ()
    forbidden: Sequence[str] = ()
    no_repeat: int = 0
    min_length: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.prefix, str):
            arguments.encodable("prefix", [self.prefix])
        else:
            object.__setattr__(self, "prefix", tuple(arguments.string_list("prefix", self.prefix)))
        required = arguments.as_list(
            "required", self.required, "a list of words, or one such list for each text"
        )
        if all(isinstance(phrase, str) for phrase in required):
            arguments.encodable("required", required)
        else:
            required = [tuple(arguments.string_list("required", phrases, "words")) for phrases in required]
        object.__setattr__(self, "required", tuple(required))
        forbidden = tuple(arguments.string_list("forbidden", self.forbidden, "words"))
        if not all(forbidden):
            raise OptionError("forbidden is a list of words, got '' among them")
        object.__setattr__(self, "forbidden", forbidden)
        arguments.integer("no_repeat", self.no_repeat, 0)
        arguments.integer("min_length", self.min_length, 0)

    def are_of_text(self) -> bool:
        """Whether there is a prefix or a required phrase: a text has them once, not each of its sentences."""
        return any(self.prefix) or any(self.required)

    def of_texts(self, count: int) -> list[tuple[str, list[str]]]:
        """Return the prefix and the required phrases of each of `count` texts."""
        return list(zip(self.prefixes(count), self.required_phrases(count), strict=True))

    def prefixes(self, count: int) -> list[str]:
        """Return the prefix of each of `count` texts."""
        return (
            [self.prefix] * count if isinstance(self.prefix, str) else _one_each("prefix", self.prefix, count)
        )

    def required_phrases(self, count: int) -> list[list[str]]:
        """Return the required phrases of each of `count` texts."""
        if all(isinstance(phrase, str) for phrase in self.required):
            return [list(self.required)] * count  # type: ignore[list-item]
        return [list(phrases) for phrases in _one_each("required", self.required, count)]

    def only_where(self, applies: Sequence[bool]) -> Constraints:
        """Restrict prefix and required phrases to some texts, for a call with `len(applies)` texts."""
        if not self.prefix and not self.required:
            return self
        prefixes, required = self.prefixes(len(applies)), self.required_phrases(len(applies))
        return replace(
            self,
            prefix=[prefix if applied else "" for prefix, applied in zip(prefixes, applies, strict=True)],
            required=[phrases if applied else [] for phrases, applied in zip(required, applies, strict=True)],
        )

    def encode(self, tokenizer: Any, count: int) -> TokenConstraints:
        """Convert the texts into tokens, for a call with `count` texts."""
        prefixes = [_spell(tokenizer, "prefix", text) for text in self.prefixes(count)]
        required = [
            [_spell(tokenizer, "required word", phrase) for phrase in phrases]
            for phrases in self.required_phrases(count)
        ]
        # A phrase that the vocabulary cannot spell is never generated.
        encoded = tokenizer.encode_batch(list(self.forbidden)) if self.forbidden else []
        forbidden = tuple(tuple(tokens) for tokens in encoded if UNK not in tokens)
        return TokenConstraints(self.min_length, self.no_repeat, forbidden, prefixes, required)


@dataclass(frozen=True)
class TokenConstraints:
    """`Constraints` as token ids; prefixes and required phrases are one entry per sentence, or None.

    Forbidden continuations get probability 0. The other probabilities stay as they are, so scores are log p
    under the model.
    """

    min_length: int = 0
    no_repeat: int = 0
    forbidden: tuple[tuple[int, ...], ...] = ()
    prefixes: Sequence[Sequence[int]] | None = None
    required: Sequence[Sequence[Sequence[int]]] | None = None

    def __post_init__(self) -> None:
        arguments.integer("min_length", self.min_length, 0)
        arguments.integer("no_repeat", self.no_repeat, 0)
        object.__setattr__(self, "forbidden", tuple(tuple(phrase) for phrase in self.forbidden))
        if not all(self.forbidden):
            raise OptionError("a forbidden phrase is empty; leave it out")

    @property
    def filters_tokens(self) -> bool:
        """Whether `apply` can forbid a token."""
        return bool(self.min_length or self.no_repeat or self.forbidden)

    def prefix_of(self, index: int) -> list[int]:
        """Return the prefix of a sentence."""
        return [] if self.prefixes is None else list(self.prefixes[index])

    def required_of(self, index: int) -> list[list[int]]:
        """Return the required phrases of a sentence, without duplicates and empty phrases."""
        if self.required is None:
            return []
        return [list(phrase) for phrase in dict.fromkeys(map(tuple, self.required[index])) if phrase]

    def apply(self, log_p: Tensor, tokens: Tokens, length: Integers, end: int = EOS) -> None:
        """Set log p (rows, vocabulary) of forbidden continuations to −∞; `tokens` holds `length` tokens per
        row.
        """
        for rows, forbidden in self._forbidden(tokens[:, : max(1, int(length.max(initial=1)))], length, end):
            if len(rows):
                columns = torch.as_tensor(forbidden, device=log_p.device)
                index = torch.from_numpy(rows).to(log_p.device), columns
                log_p.index_put_(index, log_p.new_full((), -torch.inf))

    def _forbidden(
        self, tokens: Tokens, length: Integers, end: int
    ) -> Iterator[tuple[Integers, Integers | int]]:
        """Yield rows and the token (or tokens) that may not follow."""
        if self.min_length and end >= 0:
            yield np.flatnonzero(length < self.min_length), end
        for phrase in self.forbidden:
            if len(phrase) <= tokens.shape[1] + 1:
                yield np.flatnonzero(_ends_with(tokens, length, np.array(phrase[:-1], np.int64))), phrase[-1]
        if self.no_repeat:
            yield _repeats(tokens, length, self.no_repeat)


NO_CONSTRAINTS = Constraints()


def as_constraints(constraints: Any) -> Constraints:
    """Check the argument `constraints` of a public function; None is no constraints."""
    if constraints is None:
        return NO_CONSTRAINTS
    expected = "a Constraints object such as Constraints(no_repeat=3)"
    return arguments.instance("constraints", constraints, Constraints, expected)


def _one_each(name: str, values: Sequence[Any], count: int) -> list[Any]:
    if len(values) != count:
        raise OptionError(f"{name} has {len(values)} entries for {count} texts; give one for each")
    return list(values)


def _spell(tokenizer: Any, role: str, text: str) -> list[int]:
    tokens = tokenizer.encode(text) if text else []
    if UNK in tokens:
        raise OptionError(
            f"the {role} {arguments.quoted(text)} has characters that are not in the vocabulary of this "
            "model; leave it out or change the spelling"
        )
    return tokens


def _ends_with(tokens: Tokens, length: Integers, phrase: Integers) -> NDArray[np.bool_]:
    """Return which rows end with the phrase; all rows for an empty phrase."""
    positions = length[:, None] - len(phrase) + np.arange(len(phrase))
    last = np.take_along_axis(tokens, positions.clip(0, tokens.shape[1] - 1), 1)  # (rows, phrase)
    return (length >= len(phrase)) & (last == phrase).all(1)


def _repeats(tokens: Tokens, length: Integers, n: int) -> tuple[Integers, Integers]:
    """Return rows and tokens that would complete an n-gram which the row already contains."""
    if tokens.shape[1] < n:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    positions = length[:, None] - (n - 1) + np.arange(n - 1)
    last = np.take_along_axis(tokens, positions.clip(0, tokens.shape[1] - 1), 1)  # (rows, n − 1)
    rows, starts = np.nonzero(np.arange(tokens.shape[1] - n + 1) + n <= length[:, None])
    for i in range(n - 2, -1, -1):  # from the last token: few starts are left after the first comparison
        if not len(rows):
            break
        same = tokens[rows, starts + i] == last[rows, i]
        rows, starts = rows[same], starts[same]
    return rows, tokens[rows, starts + n - 1].astype(np.int64)
