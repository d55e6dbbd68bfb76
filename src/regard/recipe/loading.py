"""Find, read, override and validate recipes.

    recipe = load_recipe("small", ["training.steps=200", "model.encoder.heads=2"])
    recipe = load_recipe("my-recipes/transformer.yaml")
    print(dump_recipe(recipe))  # with all defaults; this is what a run keeps

A recipe is one YAML file with plain values, read as in YAML 1.2; PyYAML alone follows YAML 1.1, where
`no` is false, 1e-4 a string and 1:30 ninety. Tags, anchors and aliases are refused: a recipe does not need
them, and they can make a small file expand to a large one or run code.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Hashable, Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from regard.arguments import instance, integer
from regard.data.corpora import names as corpus_names
from regard.errors import RecipeError, RegardError, for_shell
from regard.models.build import build as build_model
from regard.models.catalog import known_models
from regard.recipe.checks import check_recipe, explain_errors, recipe_error
from regard.recipe.fine_tuning import MINILM, complete_from_pretrained
from regard.recipe.schema import Recipe
from regard.tasks import TASKS, get_task

__all__ = [
    "Recipe",
    "add_folder",
    "build",
    "difference",
    "dump_recipe",
    "find_recipe",
    "load_recipe",
    "recipe_files",
]

MAX_BYTES = 1 << 17  # of a recipe file
FOLDERS_VARIABLE = "REGARD_RECIPES"  # folders of recipes, separated as in PATH


def load_recipe(
    recipe: str | PathLike[str] | Mapping[str, Any] | Recipe,
    overrides: Iterable[str] = (),
    pretrained: Path | None = None,
) -> Recipe:
    """Return a recipe, validated and with all defaults.

    Paths in a recipe file are relative to its folder, paths in overrides and mappings to the working folder.
    The result has absolute paths, so that a run can be resumed from anywhere.

    Args:
        recipe: a file, the name of a recipe (see `recipe_files`), a mapping, or a Recipe.
        overrides: `key=value` strings with dotted keys.
        pretrained: the run's copy of the model that it fine-tunes, instead of the folder in the recipe.
    """
    where, raw = "", {}
    if isinstance(recipe, Recipe):
        raw = recipe.model_dump()
    elif isinstance(recipe, Mapping):
        raw = copy.deepcopy(dict(recipe))
    elif isinstance(recipe, str | PathLike):
        path = find_recipe(recipe)
        where, raw = f"{path}: ", read_yaml(path)
        raw.setdefault("name", run_name(path.stem, "recipe"))
        raw = _absolute_paths(raw, path.resolve().parent)
    else:
        raise RecipeError(f"a recipe is a file, a name or a mapping, got {type(recipe).__name__}")
    overrides = list(overrides)
    if isinstance(raw.get("data"), str):  # `data: multi30k` is short for its corpus
        raw = {**raw, "data": {"corpus": raw["data"]}}
    overridden = _absolute_paths(override(raw, overrides), Path.cwd())
    validated, problems = _validate(complete_from_pretrained(overridden, pretrained))
    if validated is not None:
        return validated
    # The file is named only if the problem is its own.
    file_is_wrong = not overrides or not _is_valid(raw, pretrained)
    raise recipe_error(problems, where if file_is_wrong else "")


def run_name(text: str, default: str) -> str:
    """Return a valid name of a run folder: other characters become dashes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("-._") or default


def build(model: Mapping[str, Any], source_vocab: int | None, target_vocab: int) -> Any:
    """Return an untrained model from a recipe's `model:` block.

    >>> model = regard.build({"dim": 32}, source_vocab=100, target_vocab=100)
    >>> type(model).__name__
    'Translator'

    Args:
        model: the block; missing keys have their defaults. Without `kind` it is a translator, or a language
            model if there is no source vocabulary.
        source_vocab: size of the source vocabulary; None for language models.
        target_vocab: size of the target vocabulary.
    """
    instance("model", model, Mapping, "a mapping, as the model: section of a recipe")
    for name, size in (("source_vocab", source_vocab), ("target_vocab", target_vocab)):
        if size is not None or name == "target_vocab":
            integer(name, size)
    default = {} if "kind" in model else {"encoder": None if source_vocab is None else {}}
    raw = {"model": {**default, **model}}
    try:
        block = Recipe.model_validate(raw).model  # so that errors have the full key
    except ValidationError as error:
        raise recipe_error(explain_errors(error, raw)) from None
    return build_model(block.model_dump(), source_vocab, target_vocab)


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML, with all defaults and in the schema's order."""
    return dump_yaml(recipe.model_dump())


def difference(a: Recipe, b: Recipe) -> list[str]:
    """Return the dotted keys in which two recipes differ."""
    missing = object()
    first, second = _flatten(a.model_dump()), _flatten(b.model_dump())
    return [key for key in {**first, **second} if first.get(key, missing) != second.get(key, missing)]


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat.update(_flatten(inner, f"{path}.{key}" if path else key))
    return flat


def _validate(raw: dict[str, Any]) -> tuple[Recipe | None, list[str]]:
    """Return the recipe with the defaults of its task, or None and what is wrong."""
    task = raw.get("task", "translate")
    if isinstance(task, str) and task in TASKS:
        raw = get_task(task).apply_defaults(raw)
    try:
        recipe = Recipe.model_validate(raw)
    except ValidationError as error:
        return None, explain_errors(error, raw)
    problems = check_recipe(recipe)
    return (None if problems else recipe), problems


PATHS = {
    "data": ("train", "validation", "test"),
    "tokenizer": ("load",),
    "model": ("vectors", "pretrained"),
    "training": ("start",),
    "distillation": ("teacher",),
}
OF_MODELS = {"load", "pretrained", "start", "teacher"}  # those that name a model folder


def _is_valid(raw: dict[str, Any], pretrained: Path | None) -> bool:
    try:
        return _validate(complete_from_pretrained(raw, pretrained))[0] is not None
    except RegardError:  # its first model is not there
        return False


def _absolute_paths(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the recipe with the paths of PATHS absolute, relative to `folder`.

    A split of a known corpus (wmt-newstest:newstest2014) is not a file, and a model may have a name of
    `regard models`; values of other types are left for the schema to refuse.
    """

    def absolute(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [absolute(key, item) for item in value]
        is_path = isinstance(value, str) and value and value != MINILM
        if not is_path or value.partition(":")[0] in corpus_names():
            return value
        path = folder / Path(value).expanduser()
        named = known_models().get(value) if key in OF_MODELS and not os.path.lexists(path) else None
        return str(path if named is None else named.folder)

    raw = dict(raw)
    for name, keys in PATHS.items():
        block = raw.get(name)
        if isinstance(block, dict):
            raw[name] = {k: absolute(k, value) if k in keys else value for k, value in block.items()}
    return raw


# Recipes by name

_folders: list[Path] = []


def add_folder(folder: str | PathLike[str]) -> None:
    """Make the recipes of a folder known by name, as the environment variable REGARD_RECIPES does.

    >>> regard.recipe.add_folder("my-recipes")  # doctest: +SKIP
    >>> regard.train("transformer")  # my-recipes/transformer.yaml  # doctest: +SKIP
    """
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise RecipeError(f"there is no folder {folder}; give a folder of recipe files (*.yaml)")
    if path not in _folders:
        _folders.append(path)


def recipe_files() -> dict[str, Path]:
    """Return all recipes that are known by name.

    Included recipes come first; recipes of the same name in folders of `add_folder` and REGARD_RECIPES
    replace them.
    """
    variable = os.environ.get(FOLDERS_VARIABLE, "")
    from_environment = [Path(name).expanduser() for name in variable.split(os.pathsep) if name]
    folders = [included_folder(), *from_environment, *_folders]
    files = [sorted(folder.glob("*.yaml"), key=lambda path: path.stem) for folder in folders]
    return {path.stem: path for paths in files for path in paths}


def included_folder() -> Path:
    """Return the folder of the included recipes: in the installed package, or `recipes/` of a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "recipes", package.parent.parent / "recipes"):
        if folder.is_dir():
            return folder
    raise RecipeError("this installation has no recipes; give a recipe file instead of a name")


def find_recipe(recipe: str | PathLike[str]) -> Path:
    """Return the file of a recipe: a path, else a name of `recipe_files`. A folder is never a recipe."""
    name = fspath(recipe)
    try:
        is_file, is_dir = Path(name).is_file(), Path(name).is_dir()
        is_run = is_dir and (Path(name) / "recipe.yaml").is_file()
    except (OSError, ValueError):  # too long, or invalid characters
        raise RecipeError(f"{name[:60]!r} is not the name of a recipe") from None
    if is_file:
        return Path(name)
    known = recipe_files()
    own_files = included_folder() / "own-files" / f"{name}.yaml"  # `regard train classifier my.csv`
    if len(Path(name).parts) == 1 and own_files.is_file():
        known.setdefault(name, own_files)
    if name in known:
        return known[name]
    if is_run:
        raise RecipeError(
            f"{name} is a run, not a recipe; `regard resume {for_shell(name)}` continues it, "
            f"`regard train {for_shell(f'{name}/recipe.yaml')}` repeats it"
        )
    if is_dir:
        raise RecipeError(
            f"{name} is a folder, and a recipe is a file; `regard recipes` lists the recipes known by name"
        )
    if Path(name).suffix in (".yaml", ".yml") or len(Path(name).parts) != 1:
        raise RecipeError(f"there is no recipe file {name}; `regard recipes` lists the recipes known by name")
    similar = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {similar[0]}?" if similar else f"known are {', '.join(known)}"
    raise RecipeError(f"there is no recipe {name!r}, neither a file nor a known name; {hint}")


# key=value overrides


def override(raw: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Return a copy of `raw` with each `a.b=value` set, the value in YAML; missing blocks are created."""
    raw = copy.deepcopy(raw)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise RecipeError(f"{assignment!r} is not key=value; write it as training.steps=200")
        try:
            value = parse_yaml(text)
        except RecipeError as error:
            reason = str(error).removeprefix("line 1: ")
            raise RecipeError(f"the value of {key} cannot be read: {reason}") from None
        block = raw
        for depth, part in enumerate(path[:-1], 1):
            if block.get(part) is None:
                block[part] = {}
            if not isinstance(block[part], dict):
                place = ".".join(path[:depth])
                raise RecipeError(f"{key} cannot be set: {place} is {block[part]!r}, not a block of keys")
            block = block[part]
        block[path[-1]] = value
    return raw


# YAML


class _Loader(yaml.SafeLoader):
    """SafeLoader with the plain values of YAML 1.2 and without duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise RecipeError(f"line {line}: a key is a string, got {key!r}")
            if key in mapping:
                raise RecipeError(f"line {line}: the key {key!r} is given twice; keep one")
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping


def _construct_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | float:
    text = node.value.replace("_", "")
    try:
        return int(text)
    except ValueError:
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))


NUMBER = r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan"
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_number)
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_mapping)
for _tag, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    ("float", NUMBER, list("-+0123456789.")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)

REFUSED = ((yaml.TagToken, "tag"), (yaml.AnchorToken, "anchor"), (yaml.AliasToken, "alias"))


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text."""
    try:
        for token in yaml.scan(text, Loader=_Loader):
            for kind, name in REFUSED:
                if isinstance(token, kind):
                    line = token.start_mark.line + 1
                    raise RecipeError(f"line {line}: a recipe has plain values only, no {name}; write it out")
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise RecipeError(f"{where}not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise RecipeError("nested too deeply; a recipe has a few levels") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; errors name the file and, if known, the line."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise RecipeError(f"{path} is {len(raw):,} bytes long; a recipe has at most {MAX_BYTES:,}")
    try:
        value = parse_yaml(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8: byte {error.start}; save it as UTF-8") from None
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    if value is None:
        raise RecipeError(f"{path} is empty; `regard recipes small` prints a recipe to start from")
    if not isinstance(value, dict):
        what = "a list" if isinstance(value, list) else f"the single value {str(value)[:40]!r}"
        raise RecipeError(f"{path} holds {what}, and a recipe is a mapping of keys to values")
    return value


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes line ends which PyYAML would write as they are and read as spaces."""


def _represent_string(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    quoted = any(c in value for c in "\x85\u2028\u2029\ufeff")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if quoted else None)


_Dumper.add_representer(str, _represent_string)


def dump_yaml(value: Any) -> str:
    """Return a mapping as YAML, keys in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
