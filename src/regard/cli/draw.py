"""`regard draw`: the computation graph of a model or recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|RECIPE", help="Model folder, run, or name or file of a recipe.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Keys of a recipe to change.")
    ] = None,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="A .svg, .html, .png or .pdf file.")
    ],
    steps: Annotated[int, typer.Option(min=2, max=12, help="Time steps to draw.")] = 4,
) -> None:
    """Draw the computation graph of a model, unrolled in time, with the edges of its attention.

    A recipe is drawn without training and without its data.

    Examples:

        regard draw runs/small -o small.svg

        regard draw small -o transformer.svg --steps 6

        regard draw multi30k-de-en-bahdanau -o rnn.svg
    """
    from regard.cli.jobs import report
    from regard.diagrams.drawing import draw
    from regard.pictures.picture import check_picture_path

    path = check_picture_path(output)
    report(f"drawn in {draw(model, steps, overrides or []).save(path)}")
