"""`regard train`: train a model from a recipe, or on files of your own."""

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

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing while training.")]
FilesAndOverrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE | KEY=VALUE", help="Files of your own; keys of the recipe with new values."),
]
RunFolder = Annotated[Path | None, typer.Option("--run", help="Folder for the run; default: runs/NAME.")]
OverwriteRun = Annotated[bool, typer.Option("--overwrite", help="Replace the run in that folder.")]
METRIC_NAMES = {
    "bleu": "BLEU",
    "tokenised_bleu": "tokenised BLEU",
    "chrf": "chrF",
    "ter": "TER",
    "f1": "F1",
    "macro_f1": "macro-F1",
    "mrr": "MRR",
}
USAGES = {  # by task: the arguments of the command that uses the trained model
    "translate": 'translate "a sentence" --model {run}',
    "language": 'generate "The beginning" --model {run}',
    "classify": 'classify "a text" --model {run}',
    "tag": 'tag "a sentence" --model {run}',
    "embed": 'embed "a text" --model {run}',
}
ENDINGS = {
    "steps": "all steps done",
    "epochs": "all epochs done",
    "minutes": "stopped by the time limit (training.minutes)",
    "patience": "stopped early, without improvement (training.patience)",
}


def command(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe file, or the name of an included recipe (`regard recipes` lists them); for files "
            "of your own: classifier, tagger, translator or language-model."
        ),
    ],
    overrides: FilesAndOverrides = None,
    run: RunFolder = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print model size, cost, memory and time.")
    ] = False,
    overwrite: OverwriteRun = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe, or on files of your own.

    Ctrl-C, SIGTERM or SIGHUP finishes the step, saves, prints how to resume and exits with 130, 143 or 129.
    Under torchrun the same command trains on several devices.

    Examples:

        regard train small training.steps=200

        regard train classifier my.csv

        regard train tagger my.conll

        regard train translator my.tsv

        regard train language-model my.txt
    """
    chosen, changes = choose_recipe(recipe, list(overrides or ()), quiet)
    if dry_run:
        print_estimate(chosen, changes)
        return
    from regard.training.trainer import train

    with exit_code_of_signals():
        result = train(chosen, folder=run, overrides=changes, overwrite=overwrite, quiet=quiet)
    print_result(result, quiet)


def choose_recipe(recipe: str, changes: list[str], quiet: bool) -> tuple[Any, list[str]]:
    """Return the recipe and its overrides; for files of one's own the recipe is made from them."""
    from regard.recipe.own_files import KINDS, recipe_for

    chosen: Any = recipe
    if recipe in KINDS and not Path(recipe).is_file():
        files = [argument for argument in changes if "=" not in argument or Path(argument).is_file()]
        changes = [argument for argument in changes if argument not in files]
        chosen, assumptions = recipe_for(recipe, files, changes)
        if not (quiet or _other_process()):
            typer.echo(assumptions, err=True)
    else:
        _check_files(recipe, changes)
    _offer_download(chosen, changes)
    return chosen, changes


def _check_files(recipe: str, overrides: list[str]) -> None:
    """Refuse a known recipe, by name or path, whose own files, or first model, have to be made first."""
    from regard.data.corpora import names
    from regard.errors import DataError, FolderError
    from regard.recipe.loading import load_recipe, recipe_files

    files = recipe_files()
    known = {name: name for name in files} | {os.path.realpath(file): name for name, file in files.items()}
    name = known.get(recipe) or known.get(os.path.realpath(recipe))
    if name is None:
        return

    def paths(changes: list[str]) -> list[str]:
        data = load_recipe(name, changes).data
        entries = [*data.train, *data.validation]
        return [path for entry in entries for path in ([entry] if isinstance(entry, str) else entry)]

    how = f"`regard recipes {for_shell(name)}` says how to make it"
    own, missing = [], None
    try:
        own = paths([])
    except FolderError as error:
        missing = str(error)
    try:
        read = paths(overrides)
    except FolderError as error:
        raise FolderError(f"{error}; {how}") if str(error) == missing else error from None
    for path in read:
        if path in own and path.partition(":")[0] not in names() and not Path(path).exists():
            raise DataError(f"the recipe {name} reads {os.path.normpath(path)}, which does not exist; {how}")


def print_estimate(recipe: Any, overrides: list[str]) -> None:
    """Print model size, cost, memory and time of a recipe."""
    from regard.training.estimate import estimate

    typer.echo(str(estimate(recipe, overrides)))


def _offer_download(recipe: Any, overrides: list[str]) -> None:
    """On a terminal, ask whether to download missing corpora."""
    from regard.cli.data import can_ask, offer

    if can_ask():
        from regard.recipe.loading import load_recipe

        offer(load_recipe(recipe, overrides).data)


@contextmanager
def exit_code_of_signals() -> Iterator[None]:
    """Exit with 128 + the signal's number when a second signal stops training at once."""
    try:
        yield
    except KeyboardInterrupt as error:
        message = next((x for x in error.args if isinstance(x, str)), None)  # StopNow has only its signal
        unsaved = (
            "stopped without saving; `regard resume RUN` continues from the last checkpoint, and if there is "
            "none yet, run the command again"
        )
        _print_error(f"regard: {message or unsaved}")
        raise typer.Exit(128 + getattr(error, "signal", signal.SIGINT)) from None


def print_result(result: Result, quiet: bool) -> None:
    """Print scores, cost and next commands, in the first process only.

    A run that a signal stopped exits with 128 + the number of the signal.
    """
    silent, run = quiet or _other_process(), for_shell(result.folder)
    if not result.finished:
        if not silent:
            _print_error(f"stopped after step {result.steps:,} and saved; resume with `regard resume {run}`")
        raise typer.Exit(128 + (result.signal or signal.SIGINT))
    if silent:
        return
    from regard.cli.runs import duration
    from regard.models.options import reads_numbers

    for split, scores in result.scores.items():
        if split == "test" and len(result.scores) > 2:  # the first of several test sets, printed by its name
            continue
        numbers = {name: value for name, value in scores.items() if isinstance(value, int | float)}
        shown = ", ".join(f"{METRIC_NAMES.get(name, name)} {value:.2f}" for name, value in numbers.items())
        typer.echo(f"{split}: {shown}")
    typer.echo(
        f"{result.steps:,} steps in {duration(result.seconds)}, {result.flops:.2e} FLOPs: "
        f"{ENDINGS.get(result.reason, result.reason)}"
    )
    typer.echo(f"the model is in {result.model_folder}; next:")
    usage = USAGES.get(result.report["recipe"]["task"])
    use = [f"regard {usage.format(run=run)}"] if usage else []  # an added task may have no command
    if reads_numbers(result.report["recipe"]["model"]):  # which is not served
        use = [f"regard {result.report['task']} FILE.npy --model {run}"]
    else:
        use.append(f"regard serve {run}")
    for line in (f"regard evaluate {run}", *use):
        typer.echo(f"  {line}")


def _other_process() -> bool:
    """True in all but the first process of a distributed run."""
    return bool(int(os.environ.get("RANK", "0")))


def _print_error(text: str) -> None:
    with suppress(OSError):  # after SIGHUP there is no terminal
        typer.echo(text, err=True)
