"""What differs from task to task in training: defaults, checks, what a batch counts, and how good a model is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from regard.data.batches import Batch
from regard.decoding.scoring import negative_log_likelihood

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe
    from regard.training.datasets import Datasets
    from regard.training.distributed import World


class Task(ABC):
    """One task. Scores are a flat dictionary of numbers with a `loss`; `figure` names the one that is quoted."""

    name: ClassVar[str]  # as a recipe says it
    model: ClassVar[str] = "autoregressive"  # the kind of its `model:` block
    figure: ClassVar[str]  # the score by which checkpoints are told apart
    title: ClassVar[str]  # the figure's name for people
    shares: ClassVar[bool] = False  # whether its figures are shares of 1
    predicts: ClassVar[str] = "target tokens"  # what `count` counts
    higher: ClassVar[bool] = True  # whether more of it is better; else the loss decides

    def settle(self, raw: dict[str, Any]) -> dict[str, Any]:
        """A recipe's raw mapping with the defaults that depend on the task."""
        raw = dict(raw)
        for key, default in (("model", {"kind": self.model}), ("batch", {"mode": "lines"})):
            block = raw.get(key, {})
            if isinstance(block, dict):
                raw[key] = {
                    **default,
                    **{k: v for k, v in block.items() if v is not None or k not in default},
                }
        return raw

    @abstractmethod
    def fits(self, recipe: Recipe) -> Iterator[str]:
        """Sentences about what does not go with this task."""

    def prepare(self, model: Any, recipe: Recipe) -> None:  # noqa: B027 - most tasks have nothing to add
        """What a model gets before its first step beyond the weights that were drawn."""

    def count(self, batch: Batch) -> int:
        """What is predicted in a batch: the loss is a mean over these."""
        return int(batch.target_lengths.sum())

    def how(self, recipe: Recipe) -> str:
        """How the finished model is scored, in words."""
        return ""

    def part(
        self,
        model: Any,
        material: Datasets,
        split: str,
        recipe: Recipe,
        world: World,
        beam: int,
        progress: bool,
    ) -> dict[str, Any]:
        """This process's share of a set: sums, and answers to every size-th row, for JSON."""
        nll, tokens = negative_log_likelihood(model, material.batches(split, recipe, world))
        sources, _ = material.texts(split)
        answers = self.answers(
            model, sources[world.rank :: world.size], recipe, beam, progress and world.first
        )
        return {"nll": nll, "tokens": tokens, "answers": answers}

    @abstractmethod
    def answers(self, model: Any, sources: list[str], recipe: Recipe, beam: int, progress: bool) -> list[Any]:
        """What the model makes of each text, for JSON."""

    def scores(
        self, parts: list[dict[str, Any]], model: Any, material: Datasets, split: str
    ) -> dict[str, Any]:
        """The scores of a set from all processes' parts."""
        nll, tokens = sum(p["nll"] for p in parts), sum(p["tokens"] for p in parts)
        found: list[Any] = [None] * sum(len(p["answers"]) for p in parts)
        for rank, part in enumerate(parts):
            found[rank :: len(parts)] = part["answers"]
        return {"loss": nll / tokens, **self.judge(found, model, material, split)}

    def judge(self, answers: list[Any], model: Any, material: Datasets, split: str) -> dict[str, Any]:
        """The task's own figures by the answers to all rows of a set; a `sample` is shown in the log."""
        raise NotImplementedError
