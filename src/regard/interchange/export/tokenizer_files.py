"""The tokenizers of an exported model: as files of `tokenizers`, and as vocabulary lists."""

from __future__ import annotations

from pathlib import Path

from regard.data.tokenizer import Tokenizer
from regard.interchange.export.compare import Model
from regard.models.translator import Translator


def source_and_target(model: Model) -> tuple[Tokenizer, Tokenizer]:
    """Return the source and target tokenizer; a language model has one for both."""
    target: Tokenizer = model.target_tokenizer  # type: ignore[assignment]
    return (model.source_tokenizer, target) if isinstance(model, Translator) else (target, target)  # type: ignore[return-value]


def file_names(model: Model) -> tuple[str, str]:
    """Return the file names of the source and target tokenizer; a shared one has one file."""
    source, target = source_and_target(model)
    return ("tokenizer.json", "tokenizer.json") if source == target else ("source.json", "target.json")


def save_tokenizers(model: Model, folder: Path) -> None:
    """Write the tokenizer files into a folder."""
    for name, tokenizer in zip(file_names(model), source_and_target(model), strict=True):
        tokenizer.save(folder / name)


def vocabulary_list(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens in the order of their ids, as `tokenizers` spells them."""
    tokens = [""] * len(tokenizer)
    for token, token_id in tokenizer.vocabulary.items():
        tokens[token_id] = token
    return tokens
