"""A short recipe, recipe files, and the message of an invalid recipe."""

import pytest

from regard.errors import RecipeError
from regard.recipe.loading import load_recipe

BASE = {"data": "multi30k"}


def message_of(*overrides, base=BASE):
    with pytest.raises(RecipeError) as caught:
        load_recipe(base, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def write(folder, text, name="mine.yaml"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
