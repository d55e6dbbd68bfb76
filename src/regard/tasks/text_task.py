"""What classifying, tagging and embedding share: texts are read as lines, and word vectors may be loaded."""

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
    """A task whose model reads and does not write."""

    shares = True

    def fits(self, recipe: Recipe) -> Iterator[str]:
        assert isinstance(recipe.model, TextModelOptions)
        if recipe.batch.mode != "lines":
            yield f"batch.mode is {recipe.batch.mode}, and task {self.name} learns from lines; leave it out"
        if recipe.tokenizer.kind == "spelled" and self.name != "tag":
            yield f"tokenizer.kind is spelled, which is for taggers, and the task is {self.name}; take word or bpe"
        if recipe.model.freeze_vectors and recipe.model.vectors is None:
            yield "model.freeze_vectors is true and model.vectors names no file, so words would mean nothing; name one"
        if recipe.model.vectors is not None and recipe.tokenizer.kind not in ("word", "spelled"):
            yield f"model.vectors has vectors of words, and tokenizer.kind is {recipe.tokenizer.kind}; take kind: word"

    def prepare(self, model: Any, recipe: Recipe) -> None:
        assert isinstance(recipe.model, TextModelOptions)
        if recipe.model.vectors is not None:
            fill(model, Path(recipe.model.vectors), frozen=recipe.model.freeze_vectors)


def fill(model: Any, path: Path, *, frozen: bool = False) -> int:
    """Put the vectors of a file into a model's table of words; how many words had one."""
    from regard.data.word_vectors import read_vectors

    vocabulary = model.source_tokenizer.vocabulary
    words, vectors = read_vectors(path, list(vocabulary))
    table = model.source.table.weight
    letters = model.config["dim"] - table.shape[1]  # what a tagger knows of a word's spelling
    part = f", of which {letters} for letters" if letters else ""
    if len(words) and vectors.shape[1] != table.shape[1]:
        raise RecipeError(
            f"the vectors of {path} are {vectors.shape[1]} wide and model.dim is {table.shape[1] + letters}{part}; "
            f"set model.dim={vectors.shape[1] + letters}"
        )
    if not len(words):
        raise RecipeError(
            f"{path} has a vector for none of the {len(vocabulary)} words of the vocabulary; is it of this language?"
        )
    with torch.no_grad():
        rows = torch.tensor([vocabulary[word] for word in words])
        table[rows] = torch.from_numpy(vectors).to(table) / model.source.scale
    table.requires_grad_(not frozen)
    return len(words)
