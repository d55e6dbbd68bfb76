"""What both systems share: recipe, tokenizer, training rows, batches, test sets and folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data import corpora
from regard.data.batch_iterator import Batches
from regard.data.datasets import Corpus, load_corpus
from regard.files.atomic import write_file
from regard.models.build import build
from regard.recipe.loading import Recipe, load_recipe
from regard.tasks import get_task
from regard.training.distributed import World

RECIPE = "transformer-base"
SETS = {
    "europarl": ("europarl-en-de", "test"),
    "newstest2013": ("wmt-newstest", "newstest2013"),
    "newstest2014": ("wmt-newstest", "newstest2014"),
}
TINY_SETS = {"tatoeba": ("tatoeba-sample", "test")}  # a bundled corpus: runs anywhere
TINY = (
    *("data.corpus=tatoeba-sample", "data.limit=2000", "tokenizer.size=500", "model.dim=32"),
    *(
        f"model.{part}.{key}"
        for part in ("encoder", "decoder")
        for key in ("layers=1", "heads=2", "inner=64")
    ),
    *("batch.tokens=512", "optimizer.lr=0.005", "schedule.warmup=20"),
    *("training.precision=float32", "training.graph=false", "training.device=cpu"),
    *("training.log_every=5", "training.validate_every=20", "training.save_every=20"),
    *("decoding.beam=2", "decoding.max_length=20"),  # a model that has hardly learned never ends
)


@dataclass(frozen=True)
class Experiment:
    """One comparison: `folder` holds both models, their records and their translations."""

    folder: Path
    minutes: float
    tiny: bool = False
    lines: int | None = None  # first lines of each test set; None: all
    changed: tuple[str, ...] = ()  # overrides of the recipe, for both systems

    @property
    def overrides(self) -> list[str]:
        return [*(TINY if self.tiny else ()), *self.changed, f"training.minutes={self.minutes}"]

    @cached_property
    def recipe(self) -> Recipe:
        return load_recipe(RECIPE, self.overrides)

    @cached_property
    def corpus(self) -> Corpus:
        """The tokenizer and the encoded rows; the first call trains and encodes, later ones use the cache."""
        recipe = self.recipe
        return load_corpus(recipe.data, recipe.tokenizer, task="translate", seed=recipe.seed)

    @property
    def vocabulary(self) -> int:
        return len(self.corpus.target_tokenizer)

    def batch_rows(self) -> Iterator[NDArray[np.int64]]:
        """The training rows of every step, endlessly: the batches of `regard train` in its order."""
        world = World(torch.device("cpu"))
        batches = get_task("translate").training_batches(self.corpus.train, self.recipe, world)
        assert isinstance(batches, Batches)
        for epoch in count():
            batches.epoch = epoch
            for number in range(batches.per_epoch()):
                yield batches.rows_of(number)

    def cost(self, steps: int) -> dict[str, int]:
        """Tokens, sentences and training FLOPs of the first steps, as `regard train` counts them.

        FLOPs are those of the recipe's architecture, three forward passes per step without padding.
        """
        train, recipe = self.corpus.train, self.recipe
        sources, targets = train.source_lengths, train.target_lengths
        shape = int(sources.max()) + 1, int(targets.max()) + 1
        pairs = np.zeros(shape, np.int64)  # rows by their lengths on both sides
        for rows in islice(self.batch_rows(), steps):
            flat = np.ravel_multi_index((sources[rows], targets[rows]), shape)
            pairs += np.bincount(flat, minlength=pairs.size).reshape(shape)
        with torch.device("meta"):
            model: Any = build(recipe.model.model_dump(), self.vocabulary, self.vocabulary)
        lengths = zip(*pairs.nonzero(), strict=True)
        flops = sum(int(pairs[s, t]) * model.flops(int(s), int(t)) for s, t in lengths)
        return {
            "tokens": int(pairs.sum(0) @ np.arange(pairs.shape[1])),
            "source_tokens": int(pairs.sum(1) @ np.arange(pairs.shape[0])),
            "sentences": int(pairs.sum()),
            "flops": 3 * flops,
        }

    def test_sets(self) -> dict[str, tuple[list[str], list[str]]]:
        """Sources and references by name."""
        sets = {}
        for name, (corpus, split) in (TINY_SETS if self.tiny else SETS).items():
            rows = islice(corpora.find(corpus).rows(split, "en", "de"), 20 if self.tiny else self.lines)
            sources, references = zip(*rows, strict=True)
            sets[name] = list(sources), list(references)
        return sets

    # Records: one JSON file for each trained system

    def read(self, system: str) -> dict[str, Any] | None:
        """The record of a trained system; None before."""
        path = self.folder / f"{system}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write(self, system: str, record: dict[str, Any]) -> None:
        write_file(self.folder / f"{system}.json", json.dumps(record, indent=1) + "\n")
