"""`regard train`, `regard resume` and `regard average`: make a model, go on making it, and the mean of several."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import for_shell

if TYPE_CHECKING:
    from regard.training.run_folder import Result

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Change keys of the recipe, such as training.steps=200."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing while training.")]


def command(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe file, else the name of an included recipe (`regard recipes` lists them); for files of your own: "
            "classifier, tagger, translator or language-model."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]... [KEY=VALUE]...",
            help="Files of your own; keys of the recipe and their new values.",
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Folder for the run; runs/NAME unless given.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print model size, cost, memory and time, and train nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in that folder.")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe, or on files of your own.

    Examples:

        regard train small training.steps=200

        regard train classifier my.csv

        regard train tagger my.conll

        regard train translator my.tsv

        regard train language-model my.txt

    Ctrl-C, SIGTERM or SIGHUP finishes the step, saves, prints how to resume and exits with 130, 143 or 129. Under torchrun the
    same command trains on several devices.
    """
    from regard.recipe.own_files import KINDS

    chosen: Any = recipe
    changes = list(overrides or ())
    if recipe in KINDS and not Path(recipe).is_file():
        from regard.recipe.own_files import recipe_for

        files = [each for each in changes if "=" not in each or Path(each).is_file()]
        changes = [each for each in changes if each not in files]
        chosen, assumed = recipe_for(recipe, files, changes)
        if not (quiet or int(os.environ.get("RANK", "0"))):
            typer.echo(assumed, err=True)
    _offer(chosen, changes)
    if dry_run:
        from regard.training.estimate import estimate

        typer.echo(str(estimate(chosen, changes)))
        return
    from regard.training.trainer import train

    with stopping():
        result = train(chosen, folder=run, overrides=changes, overwrite=overwrite, quiet=quiet)
    tell(result, quiet, KINDS[recipe].usage if chosen is not recipe else "")


def _offer(recipe: Any, overrides: list[str]) -> None:
    """On a terminal, ask whether to fetch a corpus that is not here."""
    from regard.cli.data import can_ask, offer

    if can_ask():
        from regard.recipe.loading import load_recipe

        offer(load_recipe(recipe, overrides).data)


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of the run, such as runs/small.")],
    overrides: Overrides = None,
    quiet: Quiet = False,
) -> None:
    """Resume a run from its last checkpoint, as if it had never stopped."""
    from regard.training.trainer import resume as go_on

    with stopping():
        result = go_on(run, overrides=overrides or (), quiet=quiet)
    tell(result, quiet)


def average(
    models: Annotated[
        list[Path],
        typer.Argument(help="Folders of models or checkpoints; a run stands for its best checkpoints."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the averaged model.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that regard wrote there.")
    ] = False,
) -> None:
    """Average the weights of several checkpoints of one model."""
    from regard.training.average import average as mean

    typer.echo(f"the mean of {', '.join(map(str, models))} is in {mean(models, output, overwrite=overwrite)}")


@contextmanager
def stopping() -> Iterator[None]:
    """A second signal, which stops at once, ends with its exit code too."""
    try:
        yield
    except KeyboardInterrupt as error:
        show("regard: stopped without saving; `regard resume RUN` continues from the last checkpoint")
        raise typer.Exit(128 + getattr(error, "signal", signal.SIGINT)) from None


def show(text: str) -> None:
    """A line on standard error, where there is one: after SIGHUP the terminal is gone."""
    with suppress(OSError):
        typer.echo(text, err=True)


def tell(result: Result, quiet: bool, use: str = "") -> None:
    """The outcome in a few lines, once, however many processes took part; a run stopped by a signal exits with 128 + its number."""
    silent = quiet or bool(int(os.environ.get("RANK", "0")))
    if not result.finished:
        if not silent:
            show(
                f"stopped after step {result.steps:,} and saved; resume with `regard resume {for_shell(result.folder)}`"
            )
        raise typer.Exit(128 + (result.signal or signal.SIGINT))
    if silent:
        return
    from regard.cli.runs import duration

    for split, scores in result.scores.items():
        if split == "test" and len(result.scores) > 2:  # the first of several test sets by another name
            continue
        typer.echo(
            f"{split}: "
            + ", ".join(
                f"{TITLES.get(k, k)} {v:.2f}" for k, v in scores.items() if isinstance(v, int | float)
            )
        )
    typer.echo(
        f"{result.steps:,} steps in {duration(result.seconds)}, {result.flops:.2e} FLOPs, ended by {result.reason}"
    )
    run = for_shell(result.folder)
    typer.echo(f"the model is in {result.model_folder}; next:")
    for command in (
        f"regard evaluate {run}",
        *([f"regard {use.format(run=run)}"] if use else ()),
        f"regard serve {run}",
    ):
        typer.echo(f"  {command}")


TITLES = {
    "bleu": "BLEU", "tokenised_bleu": "tokenised BLEU", "chrf": "chrF", "ter": "TER", "f1": "F1", "macro_f1": "macro-F1",
    "mrr": "MRR",
}  # fmt: skip
