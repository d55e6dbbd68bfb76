"""Rules about what may be written: not too short, nothing forbidden, no phrase twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import arguments
from regard.data.tokenizer import EOS, UNK
from regard.decoding.beam import whole
from regard.decoding.strategy import Numbers
from regard.errors import OptionError

Written = NDArray[np.int32]


@dataclass(frozen=True)
class Constraints:
    """At least `min_length` words; no `no_repeat` words in a row twice (0: no such rule); no forbidden sequence of tokens.

    What a rule forbids gets no probability; the rest keeps its own, so that scores stay log p under the model.
    """

    min_length: int = 0
    no_repeat: int = 0
    forbidden: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        whole("min_length", self.min_length, 0)
        whole("no_repeat", self.no_repeat, 0)
        object.__setattr__(self, "forbidden", tuple(tuple(words) for words in self.forbidden))
        if not all(self.forbidden):
            raise OptionError("a forbidden word is empty; leave it out")

    def __bool__(self) -> bool:
        return bool(self.min_length or self.no_repeat or self.forbidden)

    def apply(self, log_p: Tensor, written: Written, length: Numbers, end: int = EOS) -> None:
        """Put −∞ into log p (rows, vocabulary) at what the texts, `length` words of each row of `written`, may not go on with."""
        for rows, words in self._banned(written[:, : max(1, int(length.max(initial=1)))], length, end):
            if len(rows):
                at = (torch.from_numpy(rows).to(log_p.device), torch.as_tensor(words, device=log_p.device))
                log_p.index_put_(at, log_p.new_full((), -torch.inf))

    def _banned(self, written: Written, length: Numbers, end: int) -> Iterator[tuple[Numbers, Numbers | int]]:
        if self.min_length and end >= 0:
            yield np.flatnonzero(length < self.min_length), end
        for words in self.forbidden:
            if len(words) > written.shape[1] + 1:
                continue  # longer than any text so far
            yield np.flatnonzero(_ends_with(written, length, np.array(words[:-1], np.int64))), words[-1]
        if self.no_repeat:
            yield _repeats(written, length, self.no_repeat)


def forbid(tokenizer: Any, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The tokens that forbidden words are made of. What the vocabulary cannot spell is not written anyway."""
    if isinstance(words, str):
        raise OptionError("forbidden is a list of words, got one string; write [word]")
    if not all(words := arguments.string_list("forbidden", words, "words")):
        raise OptionError("forbidden is a list of words, got '' among them")
    return tuple(tuple(tokens) for tokens in tokenizer.encode_batch(list(words)) if UNK not in tokens)


def _ends_with(written: Written, length: Numbers, words: Numbers) -> NDArray[np.bool_]:
    """Which rows' last words are these; all, when there are none."""
    at = length[:, None] - len(words) + np.arange(len(words))
    return (length >= len(words)) & (
        np.take_along_axis(written, at.clip(0, written.shape[1] - 1), 1) == words
    ).all(1)


def _repeats(written: Written, length: Numbers, n: int) -> tuple[Numbers, Numbers]:
    """Rows and words that would make some n words in a row stand twice in the text."""
    if written.shape[1] < n:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    at = length[:, None] - (n - 1) + np.arange(n - 1)
    last = np.take_along_axis(written, at.clip(0, written.shape[1] - 1), 1)  # (rows, n − 1)
    rows, places = np.nonzero(np.arange(written.shape[1] - n + 1) + n <= length[:, None])
    for i in range(
        n - 2, -1, -1
    ):  # token by token from the last: few places are left after the first comparison
        if not len(rows):
            break
        same = written[rows, places + i] == last[rows, i]
        rows, places = rows[same], places[same]
    return rows, written[rows, places + n - 1].astype(np.int64)
