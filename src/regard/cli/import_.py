"""`regard import`: import a Hugging Face model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.export import Overwrite


def command(
    source: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Hugging Face model folder: MarianMT, GPT-2 or BERT-like."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the imported model.")],
    overwrite: Overwrite = False,
) -> None:
    """Import a Hugging Face model, and check that its outputs are the same.

    If the outputs differ, nothing is kept and the exit code is 1.

    Example:

        regard import opus-mt-en-de -o en-de
    """
    from regard.interchange.export.compare import UnequalError
    from regard.interchange.import_model import import_model
    from regard.models.folder import read_json

    try:
        comparison = import_model(source, output, overwrite=overwrite)
    except UnequalError as error:
        typer.echo(f"regard: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(str(comparison))
    if ignored := read_json(output / "card.json").get("generation"):
        options = ", ".join(f"{key} {value}" for key, value in ignored.items())
        typer.echo(f"generation options of the folder that regard does not apply: {options}")
    typer.echo(f"the model is in {output}; use it with `--model {output}` in translate, generate or embed")
