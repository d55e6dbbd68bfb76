"""`regard runs`: list the runs in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, or one run.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs: state, step, validation loss, score, time and training FLOPs.

    Example:

        regard runs
    """
    from regard.tasks import get_task
    from regard.training.list_runs import list_runs

    runs = list_runs(folder)
    if as_json:
        typer.echo(json.dumps([run.as_dict() for run in runs], indent=2, ensure_ascii=False))
        return
    if not runs:
        typer.echo(f"no runs in {folder} yet; `regard train small` starts one")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("run", "state", "step", "val loss", "score", "of", "time", "FLOPs"):
        table.add_column(head, justify="left" if head in ("run", "state", "of") else "right", no_wrap=True)
    for run in runs:
        score = "–"
        if run.score is not None:
            task = get_task(run.task)
            score = f"{run.score:{'.4f' if task.metric_is_fraction else '.2f'}} {task.metric_name}"
        numbers = (
            number(run.loss, ".3f"),
            score,
            run.score_split or "–",
            duration(run.seconds),
            number(run.flops, ".1e"),
        )
        table.add_row(Path(run.folder).name, run.state, f"{run.step:,}", *numbers)
    Console().print(table, highlight=False, markup=False)
    for run in runs:
        if run.problem:
            typer.echo(f"{run.folder}: {run.problem}")


def number(value: float | None, form: str) -> str:
    """Return a formatted number, or a dash for None."""
    return "–" if value is None else f"{value:{form}}"


def duration(seconds: float | None) -> str:
    """Return a duration such as 1:02:03, or a dash for None."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
