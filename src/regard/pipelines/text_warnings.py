"""Lines on standard error about texts that a model was not made for; each is printed once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

NAMED = 8  # characters that a line names
_unknown: set[str] = set()  # characters that a line was printed for
_long: set[int] = set()  # training lengths that a line was printed for


def warn_of_unknown_characters(texts: Sequence[str], tokenizer: Any) -> None:
    """Print a line about new characters that the tokenizer reads as unknown."""
    new = tokenizer.unknown_characters(texts) - _unknown - {"\ufffd"}  # bytes that are not UTF-8 have a line
    if not new:
        return
    _unknown.update(new)
    named = " ".join(map(repr, sorted(new)[:NAMED])) + f" and {len(new) - NAMED} more" * (len(new) > NAMED)
    print(f"regard: the model does not know {named}; its output may be wrong there", file=sys.stderr)


def trained_length(model: Any) -> int | None:
    """The maximum number of source tokens in training, from the model's card; None if unknown."""
    recipe = (getattr(model, "card", None) or {}).get("recipe") or {}
    return (recipe.get("data") or {}).get("max_length")


def warn_of_long_texts(encoded: Sequence[Sequence[int]], model: Any) -> None:
    """Print a line if a source has more tokens than those that the translator was trained on."""
    limit, longest = trained_length(model), max(map(len, encoded), default=0)
    if limit is None or longest <= limit or limit in _long:
        return
    _long.add(limit)
    print(
        f"regard: a text has {longest:,} tokens and the model was trained on at most {limit}, so parts may "
        "be missing; translate sentence by sentence, or with `regard translate`, which splits long lines",
        file=sys.stderr,
    )
