"""What a model is trained to do, an object for each task; a recipe names one."""

from __future__ import annotations

from regard.tasks.classify import Classify
from regard.tasks.embed import Embed
from regard.tasks.language_model import LanguageModeling
from regard.tasks.tag import Tag
from regard.tasks.task import Task
from regard.tasks.translate import Translate

__all__ = ["TASKS", "Task", "task_of"]

TASKS: dict[str, Task] = {
    task.name: task for task in (Translate(), LanguageModeling(), Classify(), Tag(), Embed())
}


def task_of(name: str) -> Task:
    """The task of that name, as the schema knows them."""
    return TASKS[name]
