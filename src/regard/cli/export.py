"""`regard export` and `regard import`: models to and from other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what regard wrote there before.")]


def command(
    model: Annotated[Path, typer.Argument(help="A model folder, or the run it is in.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="ctranslate2, huggingface or onnx.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder that is made.")],
    quantization: Annotated[
        str, typer.Option(help="Weights of ctranslate2: float32, int8, int16, float16, bfloat16 …")
    ] = "float32",
    overwrite: Overwrite = False,
) -> None:
    """Write a model for another runtime, and check there that it writes what regard writes.

    What the format cannot express is refused with the reason. An export that is not equal ends with exit code 1 and is not kept.
    """
    from regard.interchange.export.check import UnequalError
    from regard.interchange.export.write import export, target
    from regard.models.folder import load

    chosen = target(to, quantization)
    try:
        found = export(load(model), output, chosen, overwrite=overwrite)
    except UnequalError as error:
        typer.echo(f"regard: {error}", err=True)
        raise typer.Exit(1) from None
    rounded = "" if chosen.exact is chosen else f"weights rounded to {quantization}: "
    typer.echo(f"{rounded}{found}")
    typer.echo(f"the {chosen.name} model is in {output}; its README.md has a program that runs it")


def bring(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A Hugging Face folder: MarianMT, GPT-2 or BERT-like.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model folder that is made.")],
    overwrite: Overwrite = False,
) -> None:
    """Make a regard model of a Hugging Face one, and check that it writes the same, or makes the same vectors."""
    from regard.interchange.export.check import UnequalError
    from regard.interchange.import_model import import_model

    try:
        found = import_model(source, output, overwrite=overwrite)
    except UnequalError as error:
        typer.echo(f"regard: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(str(found))
    typer.echo(
        f"the model is in {output}; `regard translate`, `regard generate` or `regard index --model` runs it"
    )
