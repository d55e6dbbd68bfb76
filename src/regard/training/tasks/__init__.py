"""What a model is trained to do, an object for each task; a recipe names one."""

from __future__ import annotations

from regard.training.tasks.base import Task
from regard.training.tasks.classify import Classify
from regard.training.tasks.embed import Embed
from regard.training.tasks.language import Language
from regard.training.tasks.tag import TagWords
from regard.training.tasks.translate import Translate

__all__ = ["TASKS", "Task", "task_of"]

TASKS: dict[str, Task] = {task.name: task for task in (Translate(), Language(), Classify(), TagWords(), Embed())}


def task_of(name: str) -> Task:
    """The task of that name, as the schema knows them."""
    return TASKS[name]
