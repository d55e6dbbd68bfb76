"""The included recipes: in the package of an installation, in `recipes/` of a checkout."""

from __future__ import annotations

import difflib
from os import PathLike, fspath
from pathlib import Path

from regard.errors import RecipeError, for_shell


def folder() -> Path:
    """The folder of the included recipes."""
    package = Path(__file__).resolve().parents[1]
    for place in (package / "recipes", package.parent.parent / "recipes"):
        if place.is_dir():
            return place
    raise RecipeError("this installation has no recipes; give a recipe file instead of a name")


def included() -> dict[str, Path]:
    """The included recipes by name."""
    return {path.stem: path for path in sorted(folder().glob("*.yaml"))}


def find_recipe(recipe: str | PathLike[str]) -> Path:
    """The file of a recipe: a path, else the name of an included one. A folder is never a recipe, whatever its name."""
    name = fspath(recipe)
    try:
        is_file, is_dir = Path(name).is_file(), Path(name).is_dir()
        is_run = is_dir and (Path(name) / "recipe.yaml").is_file()
    except (OSError, ValueError):  # too long, or not a name at all
        raise RecipeError(f"{name[:60]!r} is no recipe's name") from None
    if is_file:
        return Path(name)
    own = (
        folder() / "own-files" / f"{name}.yaml"
    )  # without data: `regard train classifier my.csv` fills them in
    known = {**included(), **({name: own} if len(Path(name).parts) == 1 and own.is_file() else {})}
    if name in known:
        return known[name]
    if is_run:
        raise RecipeError(
            f"{name} is a run, not a recipe; `regard resume {for_shell(name)}` continues it, "
            f"`regard train {for_shell(f'{name}/recipe.yaml')}` repeats it"
        )
    if is_dir:
        raise RecipeError(
            f"{name} is a folder, and a recipe is a file; `regard recipes` lists the included ones"
        )
    if Path(name).suffix in (".yaml", ".yml") or len(Path(name).parts) != 1:
        raise RecipeError(f"there is no recipe file {name}; `regard recipes` lists the included ones")
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"included are {', '.join(known)}"
    raise RecipeError(f"there is no recipe {name!r}, neither a file nor an included one; {hint}")
