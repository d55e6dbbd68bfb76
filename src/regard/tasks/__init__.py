"""The tasks that a recipe can name: one file each, registered in `TASKS`."""

from __future__ import annotations

from regard.tasks import classify, embed, language_model, tag, translate
from regard.tasks.task import TASKS, Evaluation, Predictions, Task, get_task

__all__ = ["TASKS", "Evaluation", "Predictions", "Task", "get_task"]

_BUILT_IN = (translate, language_model, classify, tag, embed)  # importing a module registers its task
