"""Base class and registry of tasks.

    @TASKS.add("classify")
    class Classify(TextTask):
        model_kind, model_block = "classifier", "classifier"
        row_format = ROW_FORMATS["classify"]
        metric, metric_name = "accuracy", "accuracy"

        def predict(self, model, texts, evaluation): ...
        def metrics(self, predictions, evaluation): ...

A new task is one file with one class like this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from regard.data.batch import Batch
from regard.data.batch_iterator import Batches, BatchStream
from regard.data.prepare import Prepared
from regard.data.row_formats import RowFormat
from regard.decoding.scoring import negative_log_likelihood
from regard.models.options import Block
from regard.registry import Registry

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe
    from regard.training.distributed import World
    from regard.training.training_data import TrainingData


class NoOptions(Block):
    """No keys."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a model on a split, shared by all processes."""

    model: Any  # complete on every process, with its tokenizers
    data: TrainingData
    split: str
    recipe: Recipe
    world: World
    beam: int = 1
    progress: bool = False


@dataclass
class Predictions:
    """What a model computed for a split, or for one process's shard of it."""

    nll: float  # sum of negative log-likelihoods
    count: int  # of target tokens, rows or tags
    outputs: list[Any]  # one JSON value per row; empty if the metrics do not need them


class Task(ABC):
    """What differs from task to task: defaults, checks, batches and metrics.

    Scores are a flat dictionary of numbers with a `loss`; `metric` names the one that is reported first and,
    if higher is better, selects the best checkpoint. Otherwise the loss selects it.
    """

    model_kind: ClassVar[str]  # of the trained model, as in its config.json
    model_block: ClassVar[str] = "autoregressive"  # `kind` of the recipe's `model:` block
    row_format: ClassVar[RowFormat]  # how files become rows
    Options: ClassVar[type[Block]] = NoOptions  # keys of the recipe's `task_options:` block
    metric: ClassVar[str]  # key of the main score
    metric_name: ClassVar[str]  # its name in logs and tables
    metric_is_fraction: ClassVar[bool] = False  # scores lie between 0 and 1
    higher_is_better: ClassVar[bool] = True
    loss_unit: ClassVar[str] = "target tokens"  # what `count_targets` counts
    target_entries: ClassVar[str | None] = None  # name of target vocabulary entries that are not tokens
    uses_search: ClassVar[bool] = False  # the scores depend on the `decoding:` block
    uses_pretrained_encoder: ClassVar[bool] = False  # `model.pretrained` is allowed
    label_parameters: ClassVar[tuple[str, ...]] = ()  # prefixes of parameters that depend on the label set

    def __init__(self, name: str) -> None:
        self.name = name

    # Recipe

    def apply_defaults(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return a recipe's raw mapping with the defaults that depend on the task."""
        raw = dict(raw)
        for key, default in (("model", {"kind": self.model_block}), ("batch", {"mode": "lines"})):
            block = raw.get(key, {})
            if isinstance(block, dict):
                given = {k: v for k, v in block.items() if v is not None or k not in default}
                raw[key] = {**default, **given}
        return raw

    def validate(self, recipe: Recipe) -> Iterator[str]:
        """Yield a sentence for everything in the recipe that this task does not support."""
        yield from ()

    def search_description(self, recipe: Recipe) -> str:
        """Return how predictions of the final evaluation are searched for, such as " with beam size 5"."""
        return ""

    # Model

    def initialize(self, model: Any, recipe: Recipe) -> None:  # noqa: B027 - most tasks need nothing
        """Prepare a new model before its first step, beyond the random initialization."""

    def pretrained_keys(self, tokenizer: str) -> dict[str, Any]:
        """Return keys of the model block that a pretrained encoder with this kind of tokenizer determines."""
        return {}

    def pretrained_defaults(self) -> dict[str, Any]:
        """Return other defaults of the model block for a pretrained encoder."""
        return {}

    def pretrained_tokenizers(self, tokenizer: Any) -> tuple[Any, Any]:
        """Return source and target tokenizer for a pretrained encoder; None: learn it from the data."""
        return tokenizer, None

    # Batches

    def rows(self, recipe: Recipe) -> RowFormat:
        """How files become rows; the input of the recipe's model decides what the source is."""
        return recipe.model.input.row_format(self.row_format)

    def count_targets(self, batch: Batch) -> int:
        """Return the number of predictions in a batch; the loss is a mean over them."""
        return int(batch.target_lengths.sum())

    def training_batches(self, prepared: Prepared, recipe: Recipe, world: World) -> BatchStream:
        """Return the endless training batches of this process."""
        batch = recipe.batch
        return Batches(
            prepared, tokens=batch.tokens, seed=recipe.seed, rank=world.rank, world=world.size,
            max_sentences=batch.sentences, multiple=batch.multiple, count=self.count_targets,
        )  # fmt: skip

    def evaluation_batches(self, prepared: Prepared, recipe: Recipe, world: World) -> Iterator[Batch]:
        """Iterate once over a split in a fixed order; every process takes every size-th batch."""
        longest = int(prepared.target_lengths.max()) + 1
        if prepared.paired:
            longest = max(longest, int(prepared.source_lengths.max()))
        batches = Batches(prepared, tokens=max(recipe.batch.tokens, longest), seed=0, shuffle=False).once()
        return (batch for i, batch in enumerate(batches) if i % world.size == world.rank)

    # Evaluation

    def evaluate_shard(self, evaluation: Evaluation) -> Predictions:
        """Return loss and outputs of this process: every size-th batch and every size-th row."""
        data, split, world = evaluation.data, evaluation.split, evaluation.world
        nll, count = negative_log_likelihood(evaluation.model, data.batches(split, evaluation.recipe, world))
        texts = data.texts(split)[0][world.rank :: world.size]
        return Predictions(nll, count, self.predict(evaluation.model, texts, evaluation))

    def predict(self, model: Any, texts: list[str], evaluation: Evaluation) -> list[Any]:
        """Return the model's output for each source text, as JSON values; [] if no metric needs it."""
        return []

    @abstractmethod
    def metrics(self, predictions: Predictions, evaluation: Evaluation) -> dict[str, Any]:
        """Return the scores of a split besides `loss`; a `sample` text is shown in the log."""


TASKS: Registry[type[Task]] = Registry("task")


def get_task(name: str) -> Task:
    """Return the task of that name."""
    return TASKS[name](name)
