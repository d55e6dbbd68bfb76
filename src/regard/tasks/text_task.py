"""Base class of tasks that encode a text (classify, tag, embed), and loading of word vectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.errors import RecipeError
from regard.models.text_model import TextModelOptions
from regard.tasks.task import Task

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe


class TextTask(Task):
    """A task whose model encodes a text and does not generate one."""

    metric_is_fraction = True
    uses_pretrained_encoder = True

    def validate(self, recipe: Recipe) -> Iterator[str]:
        assert isinstance(recipe.model, TextModelOptions)
        model, kind = recipe.model, recipe.tokenizer.kind
        if recipe.batch.mode != "lines":
            yield f"batch.mode is {recipe.batch.mode}, and task {self.name} learns from lines; leave it out"
        if kind == "word-characters" and self.model_kind != "tagger":
            yield (
                f"tokenizer.kind is word-characters, which is for taggers, and the task is {self.name}; "
                "choose word or bpe"
            )
        if model.freeze_vectors and model.vectors is None:
            yield (
                "model.freeze_vectors is true and model.vectors names no file, so random embeddings would "
                "stay random; name a file"
            )
        if model.vectors is not None and kind not in ("word", "word-characters"):
            yield f"model.vectors has vectors of words, and tokenizer.kind is {kind}; choose kind: word"

    def initialize(self, model: Any, recipe: Recipe) -> None:
        assert isinstance(recipe.model, TextModelOptions)
        if recipe.model.vectors is not None:
            load_word_vectors(model, Path(recipe.model.vectors), frozen=recipe.model.freeze_vectors)


def load_word_vectors(model: Any, path: Path, *, frozen: bool = False) -> int:
    """Copy the word vectors of a file into a model's embedding table; return the number of words found."""
    from regard.data.word_vectors import read_vectors

    vocabulary = model.source_tokenizer.vocabulary
    words, vectors = read_vectors(path, list(vocabulary))
    table = model.source.table.weight
    character_dim = model.config["dim"] - table.shape[1]  # a tagger's character features are part of dim
    note = f", of which {character_dim} are character features" if character_dim else ""
    if len(words) and vectors.shape[1] != table.shape[1]:
        raise RecipeError(
            f"the vectors of {path} are {vectors.shape[1]} wide and model.dim is "
            f"{table.shape[1] + character_dim}{note}; set model.dim={vectors.shape[1] + character_dim}"
        )
    if not len(words):
        raise RecipeError(
            f"{path} has a vector for none of the {len(vocabulary)} words of the vocabulary; "
            "check that the file is for this language"
        )
    with torch.no_grad():
        rows = torch.tensor([vocabulary[word] for word in words])
        table[rows] = torch.from_numpy(vectors).to(table) / model.source.scale
    table.requires_grad_(not frozen)
    return len(words)
