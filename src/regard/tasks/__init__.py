"""The tasks that a recipe can name: one file each, registered in `TASKS`."""

from __future__ import annotations

from regard.tasks import (
    language_modeling,
    machine_translation,
    sequence_tagging,
    text_classification,
    text_embedding,
)
from regard.tasks.task import TASKS, Evaluation, Predictions, Task, get_task

__all__ = ["TASKS", "Evaluation", "Predictions", "Task", "get_task"]

# Importing a module registers its task.
_INCLUDED = (language_modeling, machine_translation, sequence_tagging, text_classification, text_embedding)
