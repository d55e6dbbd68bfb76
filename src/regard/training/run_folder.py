"""The files of a run, and which keys of its recipe may change when it is resumed.

runs/NAME/recipe.yaml                 the recipe with all defaults
          log.jsonl                   one JSON object per event
          checkpoints/step-00001000/  the last two checkpoints
          best/step-00001000/         the best models by validation
          model/                      the final model
          start/                      fine-tuning: a copy of the pretrained model
          report.json, curves.png     scores and cost; loss and metric by step
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from regard.errors import FolderError, RecipeError, RegardError, for_shell
from regard.files.atomic import remove_folder, write_file
from regard.models.folder import read_json
from regard.recipe.loading import Recipe, difference, dump_recipe, load_recipe
from regard.tasks import get_task
from regard.training.step_folders import remove_except, step_folders

# Keys that may change on resuming: length and device of the run, validation and search; not what is learned.
CHANGEABLE = {
    "name", "about",
    "training.steps", "training.epochs", "training.minutes", "training.patience",
    "training.validate_every", "training.save_every", "training.log_every",
    "training.keep", "training.average",
    "training.device", "training.strategy", "training.threads", "training.graph", "training.tensorboard",
    "decoding.beam", "decoding.validation_beam", "decoding.length_penalty", "decoding.max_length",
    "distillation.batch_tokens", "distillation.ray",
}  # fmt: skip

# Of these, the keys that validation scores depend on: they may not change if the schedule or early stopping
# compares validations.
VALIDATION_KEYS = (
    "training.validate_every",
    "decoding.validation_beam",
    "decoding.length_penalty",
    "decoding.max_length",
)


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run."""

    folder: Path

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def best(self) -> Path:
        return self.folder / "best"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def start(self) -> Path:
        return self.folder / "start"

    @property
    def report(self) -> Path:
        return self.folder / "report.json"

    @property
    def curves(self) -> Path:
        return self.folder / "curves.png"

    def exists(self) -> bool:
        """True if a run was started here. The recipe is the first file that is written."""
        return self.recipe.is_file()

    def check_free(self, overwrite: bool) -> None:
        """Raise a FolderError if a new run may not use this folder; other folders are never changed."""
        if self.exists() and not overwrite:
            raise FolderError(
                f"{self.folder} holds a run already; continue it with "
                f"`regard resume {for_shell(self.folder)}`, or replace it with --overwrite"
            )
        if self.folder.exists() and not self.exists() and not _is_empty(self.folder):
            raise FolderError(f"{self.folder} exists and is not a run; give another folder or name")

    def make(self) -> None:
        """Create the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderError(
                f"{self.folder} cannot be created ({error.strerror}); give another folder"
            ) from None

    def create(self, recipe: Recipe, overwrite: bool) -> None:
        """Create the folder of a new run; with `overwrite` remove the files of the old one."""
        self.check_free(overwrite)
        if self.exists():
            for path in (self.checkpoints, self.best):
                remove_except(path)
            for path in (self.model, self.start):
                remove_folder(path)
            for path in (self.log, self.report, self.curves, self.recipe):
                path.unlink(missing_ok=True)
        self.make()
        write_file(self.recipe, dump_recipe(recipe).encode())

    def read_recipe(self, overrides: tuple[str, ...] = ()) -> Recipe:
        """Return the recipe of the run, with overrides."""
        if self.exists():
            return self.load_recipe(self.load_recipe(self.recipe).model_dump(mode="json"), overrides)
        for path in reversed(step_folders(self.checkpoints)):  # without recipe.yaml: checkpoints have a copy
            with contextlib.suppress(RegardError, KeyError, TypeError):
                return self.load_recipe(read_json(path / "state.json")["recipe"], overrides)
        problem = "is not the folder of a run" if self.folder.is_dir() else "does not exist"
        raise FolderError(
            f"{self.folder} {problem}; give one that `regard train` has made, such as runs/NAME"
        )

    def load_recipe(
        self, recipe: str | PathLike[str] | Mapping[str, Any], overrides: tuple[str, ...] = ()
    ) -> Recipe:
        """Load a recipe of this run; the pretrained model that it fine-tunes is the run's copy."""
        return load_recipe(recipe, overrides, self.start if self.start.is_dir() else None)

    def write_report(self, report: Mapping[str, Any]) -> None:
        write_file(self.report, (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode())

    def read_report(self) -> dict[str, Any] | None:
        """Return the report of a finished run, else None."""
        return read_json(self.report) if self.report.is_file() else None


def _is_empty(folder: Path) -> bool:
    """True for a folder without files, hidden ones aside."""
    return folder.is_dir() and all(path.name.startswith(".") for path in folder.iterdir())


def check_unchanged(before: Recipe, now: Recipe, folder: Path) -> None:
    """Raise a RecipeError if a key differs that may not change on resuming."""
    different = difference(before, now)
    changed = [key for key in different if key not in CHANGEABLE]
    lengths = [key for key in different if key in ("training.steps", "training.epochs")]
    if lengths and not changed and now.schedule.needs_steps:  # the rate depends on the length of the run
        raise RecipeError(
            f"{lengths[0]} may not change on resuming {folder}: its {now.schedule.kind} schedule ends at the "
            "last step; leave it out to resume, or start a run of another name with `regard train`"
        )
    if changed:
        keys = f"{changed[0]} is" if len(changed) == 1 else f"{', '.join(changed)} are"
        raise RecipeError(
            f"{keys} not what the run in {folder} was trained with so far; put them back to resume, or start "
            "a run of another name with `regard train`"
        )
    uses_search = get_task(now.task).uses_search
    validation_keys = [key for key in VALIDATION_KEYS if uses_search or not key.startswith("decoding.")]
    differing = [key for key in different if key in validation_keys]
    early_stopping = before.training.patience is not None and now.training.patience is not None
    if differing and (now.schedule.uses_validation or early_stopping):
        kind = now.schedule.kind
        by_schedule = now.schedule.uses_validation
        why = f"the {kind} schedule" if by_schedule else "early stopping (training.patience)"
        raise RecipeError(
            f"{differing[0]} may not change on resuming {folder}: {why} counts validations without "
            "improvement, and they would not be comparable; put it back to resume, or start a run of another "
            "name with `regard train`"
        )


@dataclass
class Result:
    """The outcome of `train` or `resume`.

    Attributes:
        folder: the run folder.
        finished: False if it was interrupted.
        reason: why training ended: steps, epochs, minutes, patience or interrupted.
        steps: optimizer steps so far.
        scores: by split: loss and metrics of the final model.
        seconds: training time, over all resumptions.
        flops: FLOPs of training.
        report: everything that report.json has.
        signal: number of the signal that interrupted the run.
    """

    folder: Path
    finished: bool
    reason: str
    steps: int
    scores: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    flops: int = 0
    report: dict[str, Any] = field(default_factory=dict, repr=False)
    signal: int | None = None

    @property
    def model_folder(self) -> Path:
        """The folder of the final model."""
        return self.folder / "model"

    def load(self, device: str = "cpu") -> Any:
        """Load the final model."""
        from regard.models.folder import load as load_folder

        return load_folder(self.model_folder, device)
