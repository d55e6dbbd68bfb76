"""`regard average`: average the weights of several checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    models: Annotated[
        list[Path],
        typer.Argument(help="Folders of models or checkpoints; a run stands for its best checkpoints."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the averaged model.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder that regard wrote.")
    ] = False,
) -> None:
    """Average the weights of several checkpoints of one model.

    Example:

        regard average runs/small -o small-averaged
    """
    from regard.training.average import average

    folder = average(models, output, overwrite=overwrite)
    typer.echo(f"the average of {', '.join(map(str, models))} is in {folder}")
