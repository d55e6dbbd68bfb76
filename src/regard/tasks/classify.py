"""Classifying: accuracy decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.data.batches import Batch
from regard.models.classifier import predict
from regard.tasks.text_task import TextTask

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe
    from regard.training.datasets import Datasets


class Classify(TextTask):
    """One label for a text."""

    name, model, figure, title = "classify", "classifier", "accuracy", "accuracy"
    predicts = "rows"

    def count(self, batch: Batch) -> int:
        return len(batch)

    def answers(self, model: Any, sources: list[str], recipe: Recipe, beam: int, progress: bool) -> list[Any]:
        return predict(model, sources, progress=progress)[0]

    def judge(self, answers: list[Any], model: Any, material: Datasets, split: str) -> dict[str, Any]:
        from regard.evaluation.classification import accuracy, macro_f1

        _, labels = material.texts(split)
        return {"accuracy": accuracy(labels, answers), "macro_f1": macro_f1(labels, answers)}
