"""Reading a recipe: one YAML file, checked as a whole before anything starts; `key=value` overrides it.

recipe = load_recipe("recipes/small.yaml", ["training.steps=200", "model.encoder.heads=2"])
print(dump_recipe(recipe))  # every default filled in; this is what a run keeps
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from regard.arguments import instance, integer
from regard.data.corpora import names
from regard.errors import RecipeError
from regard.models.build import build as build_model
from regard.recipe.bundled import find_recipe
from regard.recipe.checks import check_recipe
from regard.recipe.overrides import override
from regard.recipe.problems import sentences, stop
from regard.recipe.schema import Recipe
from regard.recipe.start import MINILM, complete
from regard.recipe.yaml_file import read, write
from regard.tasks import TASKS

__all__ = ["Recipe", "build", "difference", "dump_recipe", "load_recipe"]


def load_recipe(
    recipe: str | PathLike[str] | Mapping[str, Any] | Recipe,
    overrides: Iterable[str] = (),
    start: Path | None = None,
) -> Recipe:
    """The recipe in a file, the name of an included recipe, or given as a mapping, with `key=value` overrides, checked and complete.

    Files named in a recipe file count from that file's folder, those in overrides and mappings from the working folder; the
    result names them in full, so that a run can be resumed from anywhere. `start` is a run's copy of the model that it fine-tunes.
    """
    where, raw = "", {}
    if isinstance(recipe, Recipe):
        raw = recipe.model_dump()
    elif isinstance(recipe, Mapping):
        raw = copy.deepcopy(dict(recipe))
    elif isinstance(recipe, str | PathLike):
        path = find_recipe(recipe)
        where, raw = f"{path}: ", read(path)
        raw.setdefault("name", re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("-._") or "recipe")
        raw = _located(raw, path.resolve().parent)
    else:
        raise RecipeError(f"a recipe is a file, a name or a mapping, got {type(recipe).__name__}")
    raw, overrides = _long_form(raw), list(overrides)
    checked, problems = _checked(complete(_located(override(raw, overrides), Path.cwd()), start))
    if checked is None:  # the file is named only where the problem is its own
        stop(problems, where if not overrides or _checked(complete(raw, start))[0] is None else "")
        raise AssertionError("a recipe that is not valid has a problem")
    return checked


def build(model: Mapping[str, Any], source_vocab: int | None, target_vocab: int) -> Any:
    """A model from a recipe's `model:` section, untrained; keys left out have their defaults. Without a `kind` it is a
    translator, and without a source vocabulary a language model.
    """
    instance("model", model, Mapping, "a mapping, as the model: section of a recipe")
    for name, size in (("source_vocab", source_vocab), ("target_vocab", target_vocab)):
        if size is not None or name == "target_vocab":
            integer(name, size)
    given = dict(model) if "kind" in model else {"encoder": None if source_vocab is None else {}, **model}
    try:
        section = Recipe.model_validate(
            {"model": given}
        ).model  # the whole, so that an error names the key in full
    except ValidationError as error:
        stop(sentences(error, {"model": given}))
        raise AssertionError("a section that is not valid has a problem") from None
    return build_model(section.model_dump(), source_vocab, target_vocab)


def _checked(raw: dict[str, Any]) -> tuple[Recipe | None, list[str]]:
    """The recipe with the defaults of its task, or what is wrong with it."""
    task = TASKS.get(raw.get("task", "translate")) if isinstance(raw.get("task", ""), str) else None
    raw = raw if task is None else task.settle(raw)
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        return None, sentences(error, raw)
    problems = check_recipe(recipe)
    return (None if problems else recipe), problems


def _long_form(raw: dict[str, Any]) -> dict[str, Any]:
    """`data: europarl-en-de` is short for its corpus."""
    return {**raw, "data": {"corpus": raw["data"]}} if isinstance(raw.get("data"), str) else raw


def _located(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """File names made full, counted from `folder`. A part of a known corpus (wmt-newstest:newstest2014) is no file, and what is
    no name at all is left for the schema to refuse.
    """

    def full(value: Any) -> Any:
        if isinstance(value, list):
            return [full(item) for item in value]
        if not isinstance(value, str) or not value or value.partition(":")[0] in names():
            return value
        return str(folder / Path(value).expanduser())

    raw = dict(raw)
    paths = {
        "data": ("train", "validation", "test"),
        "tokenizer": ("load",),
        "model": ("vectors", "pretrained"),
    }
    for block, keys in {**paths, "training": ("start",)}.items():
        if isinstance(raw.get(block), dict):
            raw[block] = {
                key: full(value) if key in keys and value != MINILM else value
                for key, value in raw[block].items()
            }
    return raw


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe as YAML, keys in the schema's order, so that two dumps can be compared line by line."""
    return write(recipe.model_dump())


def difference(a: Recipe, b: Recipe) -> list[str]:
    """The dotted keys in which two recipes differ."""
    one, other = _flat(a.model_dump()), _flat(b.model_dump())
    return [key for key in {**one, **other} if one.get(key, _ABSENT) != other.get(key, _ABSENT)]


_ABSENT = object()


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found.update(_flat(inner, f"{path}.{key}" if path else key))
    return found
