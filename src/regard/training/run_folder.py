"""The folder of a run: what lies where, and whether a new run may have it.

runs/NAME/recipe.yaml                       the recipe with every default filled in
          log.jsonl                         one object per event
          checkpoints/step-00001000/        the last two, to resume from: state.json, tensors.safetensors, rank-00000.safetensors
          best/step-00001000/               the best by validation: model folders
          model/                            the finished model
          start/                            of a fine-tuned model: a copy of what it started from
          report.json, curves.png           scores, cost; loss and score by step
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
from regard.training.step_folders import remove_except, step_folders

# Keys that may change between a checkpoint and its resumption: how long, where, how often looked at; not what is learned.
FREE = {
    "name", "about", "training.steps", "training.epochs", "training.minutes", "training.validate_every", "training.save_every",
    "training.log_every", "training.keep", "training.average", "training.patience", "training.device", "training.strategy",
    "training.threads", "training.graph", "training.tensorboard",
    "decoding.beam", "decoding.validation_beam", "decoding.length_penalty", "decoding.max_length",
}  # fmt: skip

# Of these, what decides when a validation is due and what it scores: fixed while the schedule or early stopping depends on it.
VALIDATION = (
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
        """Whether a run was begun here. The recipe is the first file that is written."""
        return self.recipe.is_file()

    def check_free(self, overwrite: bool) -> None:
        """A FolderError when a new run may not have this folder. One that holds something else is never touched."""
        if self.exists() and not overwrite:
            raise FolderError(
                f"{self.folder} holds a run already; continue it with `regard resume {for_shell(self.folder)}`, "
                "or replace it with --overwrite"
            )
        if (
            self.folder.exists()
            and not self.exists()
            and (not self.folder.is_dir() or any(not f.name.startswith(".") for f in self.folder.iterdir()))
        ):
            raise FolderError(f"{self.folder} exists and is not a run; give another folder or name")

    def make(self) -> None:
        """Create the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FolderError(
                f"{self.folder} cannot be made ({error.strerror}); give another folder"
            ) from None

    def begin(self, recipe: Recipe, overwrite: bool) -> None:
        """Make the folder for a new run."""
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
        """The recipe of a run that was begun, with overrides."""
        if not self.exists():
            for path in reversed(
                step_folders(self.checkpoints)
            ):  # recipe.yaml was lost: every checkpoint has a copy
                with contextlib.suppress(RegardError, KeyError, TypeError):
                    return self.load(read_json(path / "state.json")["recipe"], overrides)
            there = "is not the folder of a run" if self.folder.is_dir() else "does not exist"
            raise FolderError(
                f"{self.folder} {there}; give one that `regard train` has made, such as runs/NAME"
            )
        return self.load(json.loads(json.dumps(self.load(self.recipe).model_dump())), overrides)

    def load(
        self, recipe: str | PathLike[str] | Mapping[str, Any], overrides: tuple[str, ...] = ()
    ) -> Recipe:
        """A recipe of this run; the model that it fine-tunes is the run's own copy."""
        return load_recipe(recipe, overrides, self.start if self.start.is_dir() else None)

    def write_report(self, report: Mapping[str, Any]) -> None:
        write_file(self.report, (json.dumps(report, indent=2, ensure_ascii=False) + "\n").encode())

    def read_report(self) -> dict[str, Any] | None:
        """The report of a finished run; None before."""
        return read_json(self.report) if self.report.is_file() else None


def check_unchanged(before: Recipe, now: Recipe, folder: Path) -> None:
    """A RecipeError with the keys that differ and may not; changing what is learned in the middle would make neither run."""
    different = difference(before, now)
    changed = [key for key in different if key not in FREE]
    if now.schedule.kind == "cosine":  # its end is part of its shape
        changed += [key for key in different if key in ("training.steps", "training.epochs")]
    if changed:
        keys = f"{changed[0]} is" if len(changed) == 1 else f"{', '.join(changed)} are"
        raise RecipeError(
            f"{keys} not what the run in {folder} was trained with so far; put them back to resume, or start a run of another name "
            "with `regard train`"
        )
    early = before.training.patience is not None and now.training.patience is not None
    plateau = now.schedule.kind == "plateau"
    counted = [
        key
        for key in different
        if key in VALIDATION and (now.task == "translate" or not key.startswith("decoding."))
    ]
    if counted and (plateau or early):
        why = "the plateau schedule" if plateau else "early stopping (training.patience)"
        raise RecipeError(
            f"{counted[0]} may not change on resuming {folder}: {why} counts validations without improvement, and they would not "
            "compare any more; put it back to resume, or start a run of another name with `regard train`"
        )


@dataclass
class Result:
    """What a call of `train` or `resume` came to."""

    folder: Path
    finished: bool
    reason: str  # steps, epochs, minutes, patience or interrupted
    steps: int
    scores: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    flops: int = 0
    report: dict[str, Any] = field(default_factory=dict, repr=False)
    signal: int | None = None  # of an interrupted run: the signal's number

    @property
    def model_folder(self) -> Path:
        """The finished model."""
        return self.folder / "model"

    def load(self, device: str = "cpu") -> Any:
        """The finished model, ready to use."""
        from regard.models.folder import load as load_folder

        return load_folder(self.model_folder, device)
