"""`regard models`: the models that are known by name."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print the card of this model.")] = None,
    path: Annotated[bool, typer.Option("--path", help="Print the folder of the model.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models that are known by name: bundled ones, and those in the folders of REGARD_MODELS.

    A name can be given wherever a model folder can. A folder of that name in the working directory wins.

    Examples:

        regard models

        regard models film-reviews
    """
    from regard.errors import OptionError
    from regard.models.catalog import VARIABLE, known_models

    entries = known_models()
    if name is None:
        if path:
            raise OptionError("--path prints the folder of one model; give its name before it")
        _list(entries, as_json)
        return
    if name not in entries:
        known = f"known are {', '.join(entries)}" if entries else "none is bundled yet"
        raise OptionError(
            f"there is no model named {name!r}; {known}, and {VARIABLE} can name folders with more"
        )
    entry = entries[name]
    if path:
        print(entry.folder)
    elif as_json:
        print(json.dumps(_record(entry), ensure_ascii=False, indent=2))
    else:
        print(f"{name}: {entry.about}\n{_facts(entry)}\n\n{entry.card}", end="")


def _list(entries, as_json: bool) -> None:  # noqa: ANN001
    from regard.models.catalog import VARIABLE

    if as_json:
        print(json.dumps([_record(entry) for entry in entries.values()], ensure_ascii=False, indent=2))
        return
    for name, entry in entries.items():
        default = ", the default" if entry.default else ""
        print(f"{name} ({entry.task}{default}): {entry.about}\n  {_facts(entry)}")
        for metric, score in entry.scores.items():
            print(f"  {metric}: {score}")
    if not entries:
        print(
            f"no model is bundled yet; set {VARIABLE} to folders with models of your own, each with a card.md"
        )
    else:
        print("`regard models NAME` prints a card")


def _facts(entry) -> str:  # noqa: ANN001
    languages = ", ".join(entry.languages)
    into = f" (into {', '.join(entry.into)})" if entry.into else ""
    return f"{languages}{into} · {entry.size / 2**20:.1f} MiB · {entry.license}"


def _record(entry) -> dict:  # noqa: ANN001
    return entry.model_dump(mode="json") | {"bytes": entry.size}
