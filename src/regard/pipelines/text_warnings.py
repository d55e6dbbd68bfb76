"""Lines on standard error about texts that a model was not made for; each is printed once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from regard.pipelines.sentence_split import sentences

NAMED = 8  # characters that a line names
_unknown: set[str] = set()  # characters that a line was printed for
_long: set[int] = set()  # training lengths that a line was printed for; 0: several sentences


def warn_of_unknown_characters(texts: Sequence[str], tokenizer: Any) -> None:
    """Print a line about new characters that the tokenizer reads as unknown."""
    # Bytes that are not UTF-8 have a line of their own.
    _warn_of(tokenizer.unknown_characters(texts) - {"\ufffd"}, "its output may be wrong there")


def warn_of_left_out(symbols: str) -> None:
    """Print a line about new symbols inside a text that the model does not read."""
    _warn_of(set(symbols), "inside a text they are left out")


def _warn_of(characters: set[str], what: str) -> None:
    new = characters - _unknown
    if not new:
        return
    _unknown.update(new)
    named = " ".join(map(repr, sorted(new)[:NAMED])) + f" and {len(new) - NAMED} more" * (len(new) > NAMED)
    print(f"regard: the model does not know {named}; {what}", file=sys.stderr)


def trained_length(model: Any) -> int | None:
    """The maximum number of source tokens in training, from the model's card; None if unknown."""
    recipe = (getattr(model, "card", None) or {}).get("recipe") or {}
    return (recipe.get("data") or {}).get("max_length")


def split_tokens(model: Any) -> int | None:
    """Tokens above which a source of several sentences is split: `decoding.split_tokens` in card.json.

    For models that were trained on single sentences; None: no such number.
    """
    decoding = (getattr(model, "card", None) or {}).get("decoding")
    number = decoding.get("split_tokens") if isinstance(decoding, dict) else None
    return number if isinstance(number, int) and number > 0 else None


def warn_of_long_texts(texts: Sequence[str], encoded: Sequence[Sequence[int]], model: Any) -> None:
    """Print a line, once, if parts of a translation may be missing.

    A source is too long if it has more tokens than those of training, or several sentences for a model of
    single ones.
    """
    limit, longest = trained_length(model), max(map(len, encoded), default=0)
    if limit is not None and longest > limit and limit not in _long:
        _long.add(limit)
        reason = f"a text has {longest:,} tokens and the model was trained on at most {limit}"
    elif 0 not in _long and _has_paragraph(texts, encoded, split_tokens(model)):
        _long.add(0)
        reason = "a text has several sentences and the model was trained on single ones"
    else:
        return
    print(
        f"regard: {reason}, so parts may be missing; translate sentence by sentence, or with "
        "`regard translate`, which splits long lines",
        file=sys.stderr,
    )


def _has_paragraph(texts: Sequence[str], encoded: Sequence[Sequence[int]], most: int | None) -> bool:
    """Whether a text has more than `most` tokens and several sentences."""
    if most is None:
        return False
    long = (text for text, ids in zip(texts, encoded, strict=True) if len(ids) > most)
    return any(len(sentences(text)) > 1 for text in long)
