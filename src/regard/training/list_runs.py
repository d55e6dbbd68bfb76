"""What lies in a folder of runs: how far each is, how good, and what it cost; read from its files, whatever state they are in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from regard.errors import FolderError, RegardError
from regard.tasks import Task, task_of
from regard.training.log import read_lines
from regard.training.run_folder import RunFolder
from regard.training.step_folders import step_folders, step_of


@dataclass(frozen=True)
class Summary:
    """One run in a line."""

    name: str
    folder: str
    task: str
    state: str  # finished, stopped (it can be resumed), started (nothing saved yet) or damaged
    step: int
    loss: float | None  # of the last validation, in nats per token
    score: float | None  # the best figure of its task so far; of a finished run that of its model
    score_name: str  # bleu, perplexity, accuracy, f1 or mrr
    score_split: str  # the set it is of: validation, or the name of the test set; empty without a score
    seconds: float | None
    flops: float | None
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)


def summaries(folder: str | PathLike[str]) -> list[Summary]:
    """Every run in `folder`, by name; `folder` may be a run itself."""
    path = Path(folder)
    if RunFolder(path).exists():
        return [summary(path)]
    if not path.is_dir():
        raise FolderError(
            f"there is no folder {path}; `regard train RECIPE` makes runs/NAME, or give the folder your runs are in"
        )
    return [summary(inner) for inner in sorted(path.iterdir()) if RunFolder(inner).exists()]


def summary(folder: Path) -> Summary:
    """How far a run is. What cannot be read is said in its line and stops nothing."""
    run = RunFolder(folder)
    try:
        recipe = run.read_recipe()
        events = list(read_lines(run.log)) if run.log.is_file() else []
        report = run.read_report()
    except RegardError as error:
        return Summary(folder.name, str(folder), "", "damaged", 0, None, None, "", "", None, None, str(error))
    valid = [e for e in events if e.get("event") == "validation"]
    task = task_of(recipe.task)
    score_name = task.figure
    saved = [step for path in step_folders(run.checkpoints) if (step := step_of(path)) is not None]
    last = max([*saved, *(int(e.get("step", 0)) for e in events)], default=0)
    done = report or {}
    score, split = _score(done, task, (e.get(score_name) for e in valid))
    return Summary(
        name=recipe.name,
        folder=str(folder),
        task=recipe.task,
        state="finished" if report else "stopped" if saved else "started",
        step=int(done.get("steps", last)),
        loss=valid[-1].get("loss") if valid else None,
        score=score,
        score_name=score_name,
        score_split=split,
        seconds=done.get("seconds", events[-1].get("seconds") if events else None),
        flops=done.get("flops", events[-1].get("flops") if events else None),
    )


def _score(report: dict[str, Any], task: Task, seen: Iterable[Any]) -> tuple[float | None, str]:
    """The finished model's score on its first test set, else on its validation set, else the best validation so far; and which."""
    scores, name = report.get("scores") or {}, task.figure
    for split in sorted(scores, key=lambda split: split == "validation"):
        if isinstance(scores[split], dict) and isinstance(scores[split].get(name), int | float):
            return float(scores[split][name]), split
    numbers = [float(x) for x in seen if isinstance(x, int | float)]
    if not numbers:
        return None, ""
    return max(numbers) if task.higher else min(numbers), "validation"
