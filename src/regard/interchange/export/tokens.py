"""The tokenizers of an exported model, as files of `tokenizers` and as lists of pieces."""

from __future__ import annotations

from pathlib import Path

from regard.data.tokenizer import Tokenizer
from regard.interchange.export.check import Model
from regard.models.translator import Translator


def both(model: Model) -> tuple[Tokenizer, Tokenizer]:
    """Source and target tokenizer; a language model's is both."""
    target: Tokenizer = model.target_tokenizer  # type: ignore[assignment]
    return (model.source_tokenizer, target) if isinstance(model, Translator) else (target, target)  # type: ignore[return-value]


def names(model: Model) -> tuple[str, str]:
    """File names of source and target tokenizer: one where they are one."""
    source, target = both(model)
    return ("tokenizer.json", "tokenizer.json") if source == target else ("source.json", "target.json")


def save_tokenizers(model: Model, folder: Path) -> None:
    for name, tokenizer in zip(names(model), both(model), strict=True):
        tokenizer.save(folder / name)


def pieces(tokenizer: Tokenizer) -> list[str]:
    """Every piece by its number, as `tokenizers` spells it."""
    found = [""] * len(tokenizer)
    for piece, number in tokenizer.vocabulary.items():
        found[number] = piece
    return found
