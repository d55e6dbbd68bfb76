"""The text a run works with: training batches, and the sets it is scored on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from regard.data.batches import Batch, Batches, BatchStream, Windows
from regard.data.datasets import Corpus, Split, load_corpus
from regard.data.prepared_cache import hold
from regard.data.tokenizer import Tokenizer
from regard.recipe.schema import Recipe
from regard.recipe.start import Start
from regard.tasks import task_of
from regard.training.distributed import World


@dataclass(frozen=True)
class Datasets:
    """A corpus, as training asks for it."""

    corpus: Corpus

    @classmethod
    def load(
        cls, recipe: Recipe, world: World, say: Callable[[str], None], start: Start | None = None
    ) -> Datasets:
        """Read and prepare. The first process of each machine fills its cache, the others find everything there."""
        corpus: Corpus | None = None
        for turn in (world.local_rank == 0, world.local_rank != 0):
            if turn:
                corpus = _held(recipe, start)
            world.barrier()
        assert corpus is not None
        for line in (*corpus.notes, *(f"warning: {warning}" for warning in corpus.warnings)):
            say(line)
        return cls(corpus)

    @property
    def source_tokenizer(self) -> Tokenizer | None:
        return self.corpus.source_tokenizer

    @property
    def target_tokenizer(self) -> Tokenizer:
        return self.corpus.target_tokenizer

    def stream(self, recipe: Recipe, world: World) -> BatchStream:
        """The endless training batches of this process."""
        batch, seed = recipe.batch, recipe.seed
        if batch.mode in ("stream", "crops"):
            return Windows(
                self.corpus.train,
                length=batch.length,
                sentences=rows(recipe),
                seed=seed,
                mode=batch.mode,
                rank=world.rank,
                world=world.size,
            )
        return Batches(
            self.corpus.train, tokens=batch.tokens, seed=seed, rank=world.rank, world=world.size, max_sentences=batch.sentences,
            multiple=batch.multiple, count=task_of(recipe.task).count,
        )  # fmt: skip

    def has(self, split: str) -> bool:
        """Whether there is such a set: `validation`, or a test set by name."""
        return (
            self.corpus.validation is not None if split == "validation" else split in self.corpus.test_names
        )

    def split(self, name: str) -> Split:
        """The validation set, or a test set by name."""
        if name == "validation" and self.corpus.validation is not None:
            return self.corpus.validation
        found = self.corpus.test(name)
        hold(found.prepared, f"{name} set of {self.corpus.name}")
        return found

    def batches(self, split: str, recipe: Recipe, world: World) -> Iterator[Batch]:
        """One pass over a set, in an order that never changes; the processes take turns. A stream, whose state is carried from
        batch to batch, stays whole with the first.
        """
        prepared, batch = self.split(split).prepared, recipe.batch
        if batch.mode in ("stream", "crops"):
            fewer = min(rows(recipe), max(1, int(prepared.target_lengths.sum()) // batch.length))
            found = Windows(prepared, length=batch.length, sentences=fewer, seed=0, mode="stream").once()
        else:
            widest = max(batch.tokens, int(prepared.target_lengths.max()) + 1)
            if prepared.paired:
                widest = max(widest, int(prepared.source_lengths.max()))
            found = Batches(prepared, tokens=widest, seed=0, shuffle=False).once()
        if batch.mode == "stream":
            return found if world.first else iter(())
        return (b for i, b in enumerate(found) if i % world.size == world.rank)

    def set_checksums(self) -> dict[str, str | None]:
        """Of each set's files and everything that decides its tokens; None where there is no validation set."""
        validation = self.corpus.validation
        return {
            "training": self.corpus.train.checksum,
            "validation": None if validation is None else validation.prepared.checksum,
        }

    def texts(self, split: str) -> tuple[list[str], list[str]]:
        """The sentences of a set, source and target."""
        found = self.split(split)
        return found.sources, found.targets

    def summary(self) -> dict[str, Any]:
        """What was read, for the report."""
        train = self.corpus.train
        return {
            "files": dict(self.corpus.checksums),
            "train": {"checksum": train.checksum, "rows": train.rows, **vars(train.report)},
            "warnings": list(self.corpus.warnings),
        }


def _held(recipe: Recipe, start: Start | None) -> Corpus:
    """The corpus of a recipe, its sets in the cache held against pruning."""
    while True:
        given = None if start is None else start.tokenizers(recipe.task)
        corpus = load_corpus(recipe.data, recipe.tokenizer, task=recipe.task, seed=recipe.seed, given=given)
        sets = {
            "training": corpus.train,
            **({} if corpus.validation is None else {"validation": corpus.validation.prepared}),
        }
        if all(
            hold(each, f"{split} set of {corpus.name}, recipe {recipe.name}") for split, each in sets.items()
        ):
            return corpus


def rows(recipe: Recipe) -> int:
    """Windows of a batch: what the recipe says, or as many as its tokens hold."""
    return recipe.batch.sentences or max(1, recipe.batch.tokens // recipe.batch.length)
