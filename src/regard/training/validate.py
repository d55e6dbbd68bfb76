"""How good a model is on a text it did not learn from: loss always, and what its task is judged by."""

from __future__ import annotations

import json
from typing import Any

from regard.recipe.schema import Recipe
from regard.tasks import task_of
from regard.training.datasets import Datasets
from regard.training.distributed import World


def validate(
    model: Any,
    material: Datasets,
    split: str,
    recipe: Recipe,
    world: World,
    beam: int,
    progress: bool = False,
) -> dict[str, Any]:
    """Loss (nats per token, label or text) and the figures of the task on a split; the processes share the work and all get the
    result. `model` is whole on every process and has its tokenizers on it.
    """
    task = task_of(recipe.task)
    parts = world.gather(
        json.dumps(task.part(model, material, split, recipe, world, beam, progress)).encode()
    )
    return world.together(lambda: task.scores([json.loads(p) for p in parts], model, material, split))
