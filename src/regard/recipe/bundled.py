"""The recipes regard carries: in the package of an installation, in `recipes/` of a checkout."""

from __future__ import annotations

import difflib
from os import PathLike, fspath
from pathlib import Path

from regard.errors import RecipeError


def folder() -> Path:
    """Where the carried recipes are."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "recipes", package.parent.parent / "recipes"):
        if place.is_dir():
            return place
    raise RecipeError("this installation carries no recipes; give a recipe file instead of a name")


def bundled_recipes() -> dict[str, Path]:
    """The carried recipes by name."""
    return {path.stem: path for path in sorted(folder().glob("*.yaml"))}


def find_recipe(recipe: str | PathLike[str]) -> Path:
    """The file of a recipe: a path, or the name of one that is carried."""
    name = fspath(recipe)
    try:
        is_file, is_dir = Path(name).is_file(), Path(name).is_dir()
    except (OSError, ValueError):  # too long, or not a name at all
        raise RecipeError(f"{name[:60]!r} is no recipe's name") from None
    if is_file:
        return Path(name)
    if is_dir:
        raise RecipeError(
            f"{name} is a folder, and a recipe is a file (a run's is in it: {Path(name) / 'recipe.yaml'})"
        )
    if Path(name).suffix in (".yaml", ".yml") or len(Path(name).parts) != 1:
        raise RecipeError(f"there is no recipe file {name}; `regard recipes` lists the carried ones")
    own = (
        folder() / "own-files" / f"{name}.yaml"
    )  # without data: `regard train classifier my.csv` fills them in
    if own.is_file():
        return own
    known = bundled_recipes()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"carried are {', '.join(known)}"
        raise RecipeError(f"there is no recipe {name!r}, neither a file nor a carried one; {hint}")
    return known[name]
