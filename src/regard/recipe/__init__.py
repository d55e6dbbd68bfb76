"""Recipes: their schema, loading, overrides and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.recipe.loading import Recipe, difference, dump_recipe, load_recipe

__all__ = ["Recipe", "difference", "dump_recipe", "load_recipe"]
__getattr__ = exported(
    __name__,
    {"Recipe": "loading", "difference": "loading", "dump_recipe": "loading", "load_recipe": "loading"},
)
