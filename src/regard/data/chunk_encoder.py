"""Encode one chunk of rows: tokens of both sides, drop rows by length and ratio, draw BPE-dropout variants.

A chunk's result depends on its rows, its number and the settings alone, so chunks can be worked on anywhere
and in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.bpe_dropout import BpeDropout
from regard.data.cached_encoder import CachedEncoder, Numbers, segment_sums
from regard.data.tokenizer import UNK, Tokenizer
from regard.errors import OptionError


@dataclass(frozen=True)
class EncodingSettings:
    """Options that determine the tokens of a dataset, in addition to files and tokenizers."""

    max_length: int | None = None  # tokens of a side; longer pairs are dropped
    max_ratio: float | None = None  # of the longer side to the shorter one
    limit: int | None = None  # the first rows only
    dropout: float = 0.0
    variants: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("max_length", 1), ("limit", 1), ("variants", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"{name} must be at least {least}, got {value}")
        if self.max_ratio is not None and self.max_ratio < 1:
            raise OptionError(f"max_ratio must be at least 1, got {self.max_ratio}")
        if not self.dropout:  # nothing is drawn, so the seed does not matter
            object.__setattr__(self, "variants", 1)
            object.__setattr__(self, "seed", 0)

    def identity(self) -> dict[str, Any]:
        return {option.name: getattr(self, option.name) for option in fields(self)}


@dataclass(frozen=True)
class Encoding:
    """The result of a chunk: rows kept, counts, and for every side and variant tokens and row lengths."""

    keep: NDArray[np.bool_]
    counts: dict[str, int]
    sides: list[list[tuple[NDArray[np.uint32], NDArray[np.uint32]]]]


def _small(tokens: Numbers, lengths: Numbers) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    return tokens.astype(np.uint32), lengths.astype(np.uint32)


class ChunkEncoder:
    """Encodes chunks with one tokenizer for a text or two for pairs."""

    def __init__(self, tokenizers: Sequence[Tokenizer], settings: EncodingSettings) -> None:
        # One cache if both sides share a tokenizer.
        encoders = {tokenizer: CachedEncoder(tokenizer) for tokenizer in tokenizers}
        self.encoders = [encoders[tokenizer] for tokenizer in tokenizers]
        # Labels are not merged, so they are the same in every variant.
        self.drops = [
            BpeDropout(tokenizer, settings.dropout)
            if settings.dropout and tokenizer.kind != "label"
            else None
            for tokenizer in tokenizers
        ]
        self.settings = settings

    def run(self, columns: Sequence[Sequence[str]], number: int) -> Encoding:
        """Encode chunk `number`, given its columns."""
        encoded = [encoder.encode(column) for encoder, column in zip(self.encoders, columns, strict=True)]
        counts = {"long": 0, "ratio": 0, "unknown": 0}
        keep = self._fitting([side.lengths for side in encoded], counts)
        sides = []
        for i, side in enumerate(encoded):
            kept = side.select(keep)
            counts["unknown"] += int((kept.tokens == UNK).sum())
            name = "source_tokens" if i + 1 < len(encoded) else "target_tokens"
            counts[name] = len(kept.tokens) + len(kept.lengths)  # with an EOS per row
            dropout = self.drops[i]
            if dropout is None:
                sides.append([_small(kept.tokens, kept.lengths)] * self.settings.variants)
                continue
            random = np.random.default_rng([self.settings.seed, i, number])
            variants = dropout.variants(kept.tokens, kept.pieces, self.settings.variants, random)
            sides.append(
                [_small(tokens, segment_sums(pieces, kept.piece_counts)) for tokens, pieces in variants]
            )
        return Encoding(keep, counts, sides)

    def _fitting(self, lengths: list[Numbers], counts: dict[str, int]) -> NDArray[np.bool_]:
        """Rows within max_length and max_ratio; all rows of a language model's text."""
        keep = np.ones(len(lengths[0]), bool)
        if len(lengths) == 1:
            return keep
        shorter, longer = np.minimum(*lengths), np.maximum(*lengths)
        if self.settings.max_length is not None:
            keep &= longer <= self.settings.max_length
            counts["long"] = int((~keep).sum())
        if self.settings.max_ratio is not None:
            over = keep & (longer > self.settings.max_ratio * shorter)
            counts["ratio"] = int(over.sum())
            keep &= ~over
        return keep
