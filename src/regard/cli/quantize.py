"""`regard quantize`: store a model in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.export import Overwrite
from regard.cli.option_groups import ModelFolder


def command(
    model: ModelFolder,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the quantized model.")],
    publish: Annotated[
        bool,
        typer.Option("--publish", help="Name files in the card without their folders on this machine."),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Store a model in int8: a quarter of the bytes, for every kind of model.

    Each row of a matrix or embedding table has one scale. The C++ engine computes with the stored integers;
    PyTorch with the restored weights.

    Example:

        regard quantize runs/small -o small-int8
    """
    from regard.interchange.quantize import quantize_folder

    print(quantize_folder(model, output, overwrite=overwrite, publish=publish))
    print(f"the model is in {output}; use it like any model folder")
