"""`regard recipes`: list the included recipes, print one, or explain every key."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    name: Annotated[str | None, typer.Argument(help="Print this recipe with its comments.")] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Print every key with its default, allowed values and meaning.")
    ] = False,
) -> None:
    """List the included recipes, print one, or explain every key.

    Examples:

        regard recipes

        regard recipes small

        regard recipes --keys
    """
    if keys:
        _keys()
    elif name is not None:
        from regard.recipe.loading import find_recipe

        typer.echo(find_recipe(name).read_text(encoding="utf-8"), nl=False)
    else:
        _list()


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from regard.errors import RecipeError
    from regard.recipe.loading import read_yaml, recipe_files

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("recipe", "task", "what it trains, and its scores"):
        table.add_column(head, no_wrap=head == "recipe")
    for name, path in recipe_files().items():
        try:  # not validated: that takes longer, and needs the packages of the recipe
            recipe = read_yaml(path)
            table.add_row(name, str(recipe.get("task", "translate")), str(recipe.get("about") or ""))
        except RecipeError as error:  # list the others nevertheless
            table.add_row(name, "", f"not valid: {error}")
    console = Console()
    console.print(table, highlight=False, markup=False)
    console.print(
        "\n`regard recipes NAME` prints one, `regard train NAME` trains it, `regard recipes --keys` "
        "explains every key"
    )
    console.print("`regard distill TEACHER NAME` trains a translator on the translations of a larger one")
    console.print(
        "on files of your own: `regard train classifier my.csv`, `regard train tagger my.conll`, "
        "`regard train translator my.tsv`, `regard train language-model my.txt`"
    )


def _keys() -> None:
    from rich.console import Console
    from rich.table import Table

    from regard.recipe.schema import key_sections

    console = Console()
    for section in key_sections():
        console.print(f"[bold]{section.heading}[/bold]  {section.description}", highlight=False)
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 2))
        for key in section.keys:
            table.add_row(key.name, key.default, key.allowed, key.meaning)
        console.print(table, highlight=False, markup=False)
        console.print()
