"""`key=value` on the command line: the key dotted, the value written as in the file."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from regard.errors import RecipeError
from regard.recipe.yaml_file import parse


def override(raw: dict[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """A copy of `raw` with each `a.b=value` set; blocks on the way are made where they are missing."""
    raw = copy.deepcopy(raw)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise RecipeError(f"{assignment!r} is no key=value; write it as training.steps=200")
        try:
            value = parse(text)
        except RecipeError as error:
            raise RecipeError(
                f"the value of {key} cannot be read: {str(error).removeprefix('line 1: ')}"
            ) from None
        block = raw
        for depth, part in enumerate(path[:-1], 1):
            inner = block.setdefault(part, {})
            if inner is None:
                inner = block[part] = {}
            if not isinstance(inner, dict):
                raise RecipeError(
                    f"{key} cannot be set: {'.'.join(path[:depth])} is {inner!r}, not a block of keys"
                )
            block = inner
        block[path[-1]] = value
    return raw
