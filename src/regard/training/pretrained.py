"""The pretrained model of a fine-tuning run: its weights and tokenizers, and the run's copy of it.

A run keeps a copy in `start/`, so that resuming does not need the original folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.data.subword_tokenizer import SubwordTokenizer
from regard.data.train_tokenizers import Given
from regard.errors import FolderError
from regard.files.atomic import write_folder
from regard.models import bert
from regard.models import folder as model_folder
from regard.models.model import Model
from regard.recipe.fine_tuning import is_bert, pretrained_folder, pretrained_key
from regard.recipe.schema import Recipe
from regard.tasks import Task

ENCODER = ("source.", "encoder.")  # parameters that model.pretrained takes


@dataclass(frozen=True)
class Pretrained:
    """The model that training starts from."""

    key: str  # model.pretrained or training.start
    name: str
    model: Any

    @classmethod
    def load(cls, recipe: Recipe, copy: Path | None = None) -> Pretrained | None:
        """Load the pretrained model of a recipe, from the run's `copy` if it exists; None without one."""
        key, name = pretrained_key(recipe.model_dump())
        if name is None:
            return None
        folder = copy if copy is not None and copy.is_dir() else pretrained_folder(key, name)
        return cls(key, name, bert.read(folder) if is_bert(key, folder) else model_folder.load(folder))

    def save(self, folder: Path) -> None:
        """Save the run's copy."""
        model = self.model
        tokenizers = model.source_tokenizer, model.target_tokenizer
        write_folder(
            folder, lambda place: model_folder.save(place, model, model.config, *tokenizers, model.card)
        )

    def tokenizers(self, task: Task) -> Given:
        """Return source and target tokenizer; None: learn it from the data, as the labels of a new task."""
        source, target = self.model.source_tokenizer, self.model.target_tokenizer
        if self.key == "training.start":
            return source, target
        return task.pretrained_tokenizers(source.inner if isinstance(source, SubwordTokenizer) else source)

    def initialize(self, model: Model, task: Task) -> set[str]:
        """Copy the weights into `model`; return the names of parameters that stay randomly initialized."""
        pretrained = dict(self.model.named_parameters(remove_duplicate=False))
        parameters = dict(model.named_parameters(remove_duplicate=False))
        copied = {name for name in parameters if name in pretrained and self._takes(name, model, task)}
        with torch.no_grad():
            for name in copied:
                if parameters[name].shape != pretrained[name].shape:
                    raise FolderError(
                        f"{name} of {self.name} ({self.key}) has shape {tuple(pretrained[name].shape)}, and "
                        f"this model needs {tuple(parameters[name].shape)}; the folder has changed, so copy "
                        "it again"
                    )
                parameters[name].copy_(pretrained[name])
        return {name for name, _ in model.named_parameters()} - copied

    def _takes(self, name: str, model: Model, task: Task) -> bool:
        """True if the parameter is pretrained: the encoder's, or all but those of another label set."""
        if self.key == "model.pretrained":
            return name.startswith(ENCODER)
        same_labels = model.target_tokenizer == self.model.target_tokenizer
        return same_labels or not name.startswith(task.label_parameters)

    def describe(self, model: Model, new: set[str]) -> str:
        """Return a log line about the pretrained and the new parameters."""
        parts = sorted({name.split(".")[0] for name in new})
        labels = ""
        if self.key == "training.start" and parts:
            before, now = (len(m.target_tokenizer.entries) for m in (self.model, model))
            labels = f" (another label set: {now} labels, the pretrained model has {before})"
        weights = f"new weights: {', '.join(parts)}{labels}" if parts else "no weights are new"
        steps = getattr(self.model, "card", {}).get("steps")
        trained = "" if steps is None else f", trained for {steps:,} steps"
        return f"starting from {self.name}{trained}; {weights}"
