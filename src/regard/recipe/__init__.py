"""Recipes: schema, loading with overrides, and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.lazy import exported

if TYPE_CHECKING:
    from regard.recipe.loading import Recipe, add_folder, difference, dump_recipe, load_recipe

__all__ = ["Recipe", "add_folder", "difference", "dump_recipe", "load_recipe"]
__getattr__ = exported(__name__, dict.fromkeys(__all__, "loading"))
