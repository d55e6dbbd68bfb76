"""The data of a run: training batches, and the validation and test sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from regard.data.batch import Batch
from regard.data.batch_iterator import BatchStream
from regard.data.datasets import Corpus, Split, load_corpus
from regard.data.distilled_rows import DistilledRows
from regard.data.prepared_cache import hold
from regard.data.tokenizer import Tokenizer
from regard.recipe.schema import Recipe
from regard.tasks import get_task
from regard.training.display import Display
from regard.training.distillation import distilled_rows
from regard.training.distributed import World
from regard.training.pretrained import Pretrained


@dataclass(frozen=True)
class TrainingData:
    """A corpus as training uses it."""

    corpus: Corpus
    distilled: DistilledRows | None = None

    @classmethod
    def load(
        cls,
        recipe: Recipe,
        world: World,
        display: Display,
        pretrained: Pretrained | None = None,
    ) -> TrainingData:
        """Read and prepare the data. The first process of each machine fills the cache for the others."""
        data: TrainingData | None = None
        for is_my_turn in (world.local_rank == 0, world.local_rank != 0):
            if is_my_turn:
                data = cls._load_and_hold(recipe, world, display, pretrained)
            world.barrier()
        assert data is not None
        corpus = data.corpus
        for line in (*corpus.notes, *(f"warning: {warning}" for warning in corpus.warnings)):
            display.print(line)
        return data

    @classmethod
    def _load_and_hold(
        cls, recipe: Recipe, world: World, display: Display, pretrained: Pretrained | None
    ) -> TrainingData:
        """Load the data of a recipe and keep its prepared sets from being removed from the cache."""
        task = get_task(recipe.task)
        given = None if pretrained is None else pretrained.tokenizers(task)
        while True:
            distilled = distilled_rows(recipe, world.device, display)
            corpus = load_corpus(
                recipe.data,
                recipe.tokenizer,
                task=task.rows(recipe),
                seed=recipe.seed,
                given=given,
                training_rows=distilled,
            )
            sets = {"training": corpus.train}
            if corpus.validation is not None:
                sets["validation"] = corpus.validation.prepared
            uses = {split: f"{split} set of {corpus.name}, recipe {recipe.name}" for split in sets}
            if all(hold(prepared, uses[split]) for split, prepared in sets.items()):
                return cls(corpus, distilled)  # else another process removed a set: prepare it again

    @property
    def source_tokenizer(self) -> Tokenizer | None:
        return self.corpus.source_tokenizer

    @property
    def target_tokenizer(self) -> Tokenizer:
        return self.corpus.target_tokenizer

    def training_batches(self, recipe: Recipe, world: World) -> BatchStream:
        """Return the endless training batches of this process."""
        return get_task(recipe.task).training_batches(self.corpus.train, recipe, world)

    def batches(self, split: str, recipe: Recipe, world: World) -> Iterator[Batch]:
        """Iterate once over this process's share of a split."""
        return get_task(recipe.task).evaluation_batches(self.split(split).prepared, recipe, world)

    def has(self, split: str) -> bool:
        """True if there is such a split: `validation`, or a test set by name."""
        if split == "validation":
            return self.corpus.validation is not None
        return split in self.corpus.test_names

    def split(self, name: str) -> Split:
        """Return the validation set, or a test set by name."""
        if name == "validation" and self.corpus.validation is not None:
            return self.corpus.validation
        split = self.corpus.test(name)
        hold(split.prepared, f"{name} set of {self.corpus.name}")
        return split

    def texts(self, split: str) -> tuple[list[str], list[str]]:
        """Return the sources and targets of a split."""
        chosen = self.split(split)
        return chosen.sources, chosen.targets

    def checksums(self) -> dict[str, str | None]:
        """Return the checksums of the prepared training and validation sets."""
        validation = self.corpus.validation
        return {
            "training": self.corpus.train.checksum,
            "validation": None if validation is None else validation.prepared.checksum,
        }

    def summary(self) -> dict[str, Any]:
        """Return what was read, for the report."""
        train = self.corpus.train
        return {
            "files": dict(self.corpus.checksums),
            "train": {"checksum": train.checksum, "rows": train.rows, **vars(train.report)},
            "warnings": list(self.corpus.warnings),
            **({} if self.distilled is None else {"distillation": self.distilled.translations.counts}),
        }
