"""What is wrong with a recipe, in a sentence: the key, its place, its value and what is allowed or was perhaps meant."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from regard.errors import RecipeError
from regard.models.schema import Bahdanau
from regard.recipe.schema import Recipe

KINDS = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number", "finite_number": "a finite number",
    "bool_type": "true or false", "string_type": "text (in quotes, where it looks like a number)", "list_type": "a list",
    "model_type": "a block of keys", "model_attributes_type": "a block of keys", "dict_type": "a block of keys",
    "string_pattern_mismatch": "a folder's name: letters, digits, dots, dashes and underscores",
    "string_too_long": "at most 100 letters long",
}  # fmt: skip


def stop(problems: Sequence[str], where: str = "") -> None:
    """Raise the first problem, and say how many more there are; nothing when there are none."""
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise RecipeError(f"{where}{problems[0]}{more}") from None


def sentences(error: ValidationError) -> list[str]:
    """One sentence for each key that is wrong."""
    found: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        path, block = locate(detail["loc"])
        found.setdefault(path, _sentence(path, block, detail))
    return list(found.values())


def _sentence(path: str, block: type[BaseModel], detail: ErrorDetails) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "extra_forbidden":
        return _unknown(path, block)
    if kind == "missing":
        place, _, key = path.rpartition(".")
        return f"{place} needs the key {key}: {block.model_fields[key].description}"
    if kind == "union_tag_invalid":
        names = _words(str(context.get("expected_tags", "")))
        return f"{path}.kind is {context['tag']!r}, and must be {_choice(names)}{closest(str(context['tag']), names)}"
    if kind in ("union_tag_not_found", "model_type", "model_attributes_type", "dict_type"):
        return f"{path} is {show(value)}, and must be a block of keys" + (
            " with a kind" if kind == "union_tag_not_found" else ""
        )
    if kind == "literal_error":
        names = _words(str(context.get("expected", "")))
        return f"{path} is {show(value)}, and must be {_choice(names)}{closest(str(value), names)}"
    if path.startswith(("data.train", "data.validation", "data.test")):
        return f"{path} is {show(value)}, and must be a file's name or a list of two names, source and target"
    return f"{path} is {show(value)}, and must be {_allowed(kind, context)}"


def _allowed(kind: str, context: dict[str, Any]) -> str:
    bounds = {
        "greater_than_equal": ("at least", "ge"),
        "greater_than": ("more than", "gt"),
        "less_than": ("less than", "lt"),
    }
    if kind in bounds:
        word, key = bounds[kind]
        return f"{word} {context[key]:g}"
    if kind in ("too_short", "too_long"):
        return f"a list of {context.get('min_length', context.get('max_length'))}"
    return KINDS.get(kind, kind.replace("_", " "))


def _unknown(path: str, block: type[BaseModel]) -> str:
    place, _, key = path.rpartition(".")
    where = place or "a recipe"
    if block is Bahdanau and key == "input_feeding":
        return f"{path}: Bahdanau's context enters the recurrence already; leave input_feeding out, or take kind: recurrent"
    keys = list(block.model_fields)
    near = difflib.get_close_matches(key, keys, 1, 0.6)
    if near:
        return f"{where} has no key {key!r}; did you mean {near[0]!r}?"
    homes = [home for home in places() if home.rpartition(".")[2] == key]
    if homes:
        return f"{where} has no key {key!r}; it belongs at {' or '.join(homes[:3])}"
    return f"{where} has no key {key!r}; its keys are {', '.join(keys)}"


def closest(word: str, names: Sequence[str]) -> str:
    """'; did you mean …?' when a name is near."""
    near = difflib.get_close_matches(word, names, 1, 0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def show(value: Any) -> str:
    """A value as the user wrote it, cut to a line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _words(expected: str) -> list[str]:
    """The names in pydantic's "'a', 'b' or 'c'"."""
    return expected.split("'")[1::2]


def _choice(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def classes(annotation: Any) -> Iterator[type[BaseModel]]:
    """The blocks a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from classes(part)


def kind_of(block: type[BaseModel]) -> str | None:
    """The `kind` a class of blocks is chosen by."""
    return block.model_fields["kind"].default if "kind" in block.model_fields else None


def locate(loc: Sequence[str | int]) -> tuple[str, type[BaseModel]]:
    """The dotted place of pydantic's location, which also names the kinds it chose, and the block the last key is in."""
    path, block, choices = "", Recipe, []
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif choices and (chosen := [c for c in choices if kind_of(c) == part]):
            block, choices = chosen[0], []
        elif part in block.model_fields or part == loc[-1]:
            if part in ("str", "list[str]"):  # the two forms of a file list
                continue
            path += f".{part}" if path else part
            found = list(classes(block.model_fields[part].annotation)) if part in block.model_fields else []
            if len(found) == 1:
                block = found[0] if part != loc[-1] else block
            choices = found if len(found) > 1 else []
    return path, block


def places() -> list[str]:
    """Every key a recipe may have, dotted, kinds left out: `model.encoder.heads`."""
    found: dict[str, None] = {}

    def walk(block: type[BaseModel], path: str, above: tuple[type[BaseModel], ...]) -> None:
        for name, field in block.model_fields.items():
            found[f"{path}{name}"] = None
            for inner in classes(field.annotation):
                if inner not in above:  # masks of masks
                    walk(inner, f"{path}{name}.", (*above, inner))

    walk(Recipe, "", (Recipe,))
    return list(found)
