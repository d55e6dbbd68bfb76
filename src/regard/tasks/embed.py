"""Embedding: how well texts find those that mean the same decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.data.batches import Batch
from regard.tasks.text_task import TextTask

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe
    from regard.training.datasets import Datasets


class Embed(TextTask):
    """A vector for a text."""

    name, model, figure, title = "embed", "embedder", "mrr", "MRR"
    predicts = "pairs"

    def count(self, batch: Batch) -> int:
        return len(batch)

    def answers(self, model: Any, sources: list[str], recipe: Recipe, beam: int, progress: bool) -> list[Any]:
        return []  # vectors of all texts are compared at once, in `judge`

    def judge(self, answers: list[Any], model: Any, material: Datasets, split: str) -> dict[str, Any]:
        from regard.evaluation.similarity import similarity_scores

        found = similarity_scores(model, material.split(split)).as_dict()
        return {name: found[name] for name in ("accuracy", "mrr", "spearman") if name in found}
