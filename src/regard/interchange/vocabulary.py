"""Vocabularies of elsewhere in regard's order: PAD, UNK, BOS and EOS are numbers 0 to 3, and the rest follows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from regard.data.tokenizer import BOS, Tokenizer
from regard.errors import DataError
from regard.interchange.export.check import Runner


@dataclass(frozen=True)
class Rows:
    """Which row of their table each of our numbers is; None: they have no such word."""

    of: list[int | None]

    def take(self, table: Tensor) -> Tensor:
        """Their rows in our order, zeros where there is none."""
        found = table[[0 if row is None else row for row in self.of]].clone()
        found[[i for i, row in enumerate(self.of) if row is None]] = 0
        return found

    def theirs(self, numbers: list[int]) -> list[int]:
        """Our numbers as theirs; UNK, where they have none, is never asked for."""
        return [self.of[number] or 0 for number in numbers]


class Renumbered:
    """Another runtime's model under our numbers, so that it can be compared."""

    def __init__(self, inner: Runner, source: Rows, target: Rows) -> None:
        self.inner, self.source, self.target = inner, source, target
        self.ours = {row: i for i, row in enumerate(target.of) if row is not None and i != BOS}

    def write(self, prompt: list[int], limit: int) -> list[int]:
        return [self.ours[word] for word in self.inner.write(self.source.theirs(prompt), limit)]

    def score(self, prompt: list[int], words: list[int]) -> list[float]:
        return self.inner.score(self.source.theirs(prompt), self.target.theirs(words))


def own_tokenizer(folder: Path, name: str = "tokenizer.json") -> Tokenizer | None:
    """The tokenizer of a folder that `regard export` wrote, as it was; None for any other."""
    try:
        found = json.loads((folder / name).read_text(encoding="utf-8"))
        parts = found["decoder"]["decoders"][1:]  # the first spells UNK for transformers
        found["decoder"] = parts[0] if len(parts) == 1 else None
        return Tokenizer(json.dumps(found | {"added_tokens": [], "post_processor": None}))
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return None
