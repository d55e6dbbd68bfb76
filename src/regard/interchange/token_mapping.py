"""Map the token ids of imported vocabularies to regard's, where PAD, UNK, BOS and EOS are 0 to 3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from regard.data.tokenizer import BOS, Tokenizer
from regard.errors import DataError, FolderError
from regard.interchange.export.compare import Runner
from regard.interchange.transformers_model import reason


@dataclass(frozen=True)
class TokenMapping:
    """The other model's id for each of our ids; None if it has no such token."""

    ids: list[int | None]

    def take(self, table: Tensor) -> Tensor:
        """Return the rows of the other model's table in our order, with zeros for missing tokens."""
        rows = table[[0 if i is None else i for i in self.ids]].clone()
        rows[[ours for ours, i in enumerate(self.ids) if i is None]] = 0
        return rows

    def theirs(self, ours: list[int]) -> list[int]:
        """Map our ids to the other model's. A missing UNK never occurs in encoded text."""
        return [self.ids[i] or 0 for i in ours]


class MappedRunner:
    """A model of transformers, addressed by our token ids. FolderError if it fails."""

    def __init__(self, runner: Runner, source: TokenMapping, target: TokenMapping) -> None:
        self.runner, self.source, self.target = runner, source, target
        self.ours = {i: ours for ours, i in enumerate(target.ids) if i is not None and ours != BOS}

    def generate(self, prompt: list[int], limit: int) -> list[int]:
        with _failures_named():
            tokens = self.runner.generate(self.source.theirs(prompt), limit)
        return [self.ours[token] for token in tokens]

    def log_probs(self, prompt: list[int], tokens: list[int]) -> list[float]:
        with _failures_named():
            return self.runner.log_probs(self.source.theirs(prompt), self.target.theirs(tokens))


@contextmanager
def _failures_named() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of many types
        raise FolderError(
            f"transformers cannot run the model that is imported ({reason(error)}), so its outputs cannot be "
            "compared; correct its config.json, or import another model"
        ) from None


def exported_tokenizer(folder: Path, name: str = "tokenizer.json") -> Tokenizer | None:
    """Return the tokenizer of a folder that `regard export` wrote; None for any other folder."""
    try:
        definition = json.loads((folder / name).read_text(encoding="utf-8"))
        decoders = definition["decoder"]["decoders"][1:]  # the first writes UNK in transformers
        definition["decoder"] = decoders[0] if len(decoders) == 1 else None
        return Tokenizer(json.dumps(definition | {"added_tokens": [], "post_processor": None}))
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return None
