"""List the runs of a folder: state, score and cost of each, read from its files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from regard.errors import FolderError, RegardError
from regard.files.lock import in_use
from regard.tasks import Task, get_task
from regard.training.run_folder import RunFolder
from regard.training.run_log import read_log
from regard.training.step_folders import step_folders, step_of


@dataclass(frozen=True)
class RunSummary:
    """The state, score and cost of one run: a line of `regard runs`."""

    name: str
    folder: str
    task: str
    state: str  # finished, running, stopped (can be resumed), started (no checkpoint yet) or damaged
    step: int
    loss: float | None  # of the last validation, in nats per token
    score: float | None  # the metric of the final model, else the best validation so far
    score_name: str  # bleu, perplexity, accuracy, f1 or mrr
    score_split: str  # validation, or the name of the test set; empty without a score
    seconds: float | None
    flops: float | None
    problem: str = ""  # why a run is damaged

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return asdict(self)


def list_runs(folder: str | PathLike[str]) -> list[RunSummary]:
    """Return a summary of every run in `folder`, by name; `folder` may be a run itself."""
    path = Path(folder)
    if RunFolder(path).exists():
        return [summarize_run(path)]
    if not path.is_dir():
        raise FolderError(
            f"there is no folder {path}; `regard train RECIPE` creates runs/NAME, "
            "or give the folder of your runs"
        )
    return [summarize_run(inner) for inner in sorted(path.iterdir()) if RunFolder(inner).exists()]


def summarize_run(folder: Path) -> RunSummary:
    """Return the summary of a run; if its files cannot be read, the state is `damaged`."""
    run = RunFolder(folder)
    try:
        recipe = run.read_recipe()
        events = list(read_log(run.log)) if run.log.is_file() else []
        report = run.read_report()
    except RegardError as error:
        return RunSummary(
            folder.name, str(folder), "", "damaged", 0, None, None, "", "", None, None, str(error)
        )
    validations = [event for event in events if event.get("event") == "validation"]
    task = get_task(recipe.task)
    saved = [step for path in step_folders(run.checkpoints) if (step := step_of(path)) is not None]
    last_step = max([*saved, *(int(event.get("step", 0)) for event in events)], default=0)
    final, last_event = report or {}, events[-1] if events else {}
    score, split = _score(final, task, (event.get(task.metric) for event in validations))
    return RunSummary(
        name=recipe.name,
        folder=str(folder),
        task=recipe.task,
        state="finished" if report else "running" if in_use(folder) else "stopped" if saved else "started",
        step=int(final.get("steps", last_step)),
        loss=validations[-1].get("loss") if validations else None,
        score=score,
        score_name=task.metric,
        score_split=split,
        seconds=final.get("seconds", last_event.get("seconds")),
        flops=final.get("flops", last_event.get("flops")),
    )


def _score(report: dict[str, Any], task: Task, validations: Iterable[Any]) -> tuple[float | None, str]:
    """Score and split: of the final model (test set before validation), else of the best validation."""
    scores, metric = report.get("scores") or {}, task.metric
    for split in sorted(scores, key=lambda split: split == "validation"):
        if isinstance(scores[split], dict) and isinstance(scores[split].get(metric), int | float):
            return float(scores[split][metric]), split
    numbers = [float(x) for x in validations if isinstance(x, int | float)]
    if not numbers:
        return None, ""
    return max(numbers) if task.higher_is_better else min(numbers), "validation"
