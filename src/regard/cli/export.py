"""`regard export`: write a model for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a folder that regard wrote.")]


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a model or a run.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="ctranslate2, huggingface or onnx.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the exported model.")],
    quantization: Annotated[
        str, typer.Option(help="Weights for ctranslate2: float32, int8, int16, float16, bfloat16 …")
    ] = "float32",
    overwrite: Overwrite = False,
) -> None:
    """Export a model to CTranslate2, Hugging Face or ONNX, and check that its outputs are the same there.

    A model that the format does not support is refused. If the outputs differ, nothing is kept and the exit
    code is 1.

    Example:

        regard export runs/small --to onnx -o small-onnx
    """
    from regard.interchange.export.compare import UnequalError
    from regard.interchange.export.export_model import FORMATS, export_model
    from regard.models.folder import load

    chosen = FORMATS[to](quantization)
    try:
        comparison = export_model(load(model), output, chosen, overwrite=overwrite)
    except UnequalError as error:
        typer.echo(f"regard: {error}", err=True)
        raise typer.Exit(1) from None
    quantized = "" if chosen.exact is chosen else f"weights quantized to {quantization}: "
    typer.echo(f"{quantized}{comparison}")
    typer.echo(f"the {chosen.title} model is in {output}; its README.md has a program that runs it")
