"""`regard resume`: resume a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.train import Quiet, exit_code_of_signals, print_result


def command(
    run: Annotated[Path, typer.Argument(help="Folder of the run, such as runs/small.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Change keys of the recipe, such as training.steps=200."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Resume a run from its last checkpoint, as if it had never stopped.

    Example:

        regard resume runs/small training.steps=1000
    """
    from regard.training.trainer import resume

    with exit_code_of_signals():
        result = resume(run, overrides=overrides or (), quiet=quiet)
    print_result(result, quiet)
