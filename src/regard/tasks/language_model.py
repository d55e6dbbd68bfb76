"""Foreseeing the next word: perplexity, which is the loss, decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from regard.decoding.scoring import negative_log_likelihood
from regard.evaluation.perplexity import LanguageScores, count_text, perplexity
from regard.models.autoregressive import AutoregressiveOptions
from regard.models.transformer import TransformerOptions
from regard.tasks.task import Task

if TYPE_CHECKING:
    from regard.recipe.schema import Recipe
    from regard.training.datasets import Datasets
    from regard.training.distributed import World


class LanguageModeling(Task):
    """A text, word by word."""

    name, figure, title, higher = "language", "perplexity", "perplexity", False
    predicts = "tokens"

    def settle(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Windows are read in order where a recurrent state can be carried on."""
        model, batch = raw.get("model", {}), raw.get("batch", {})
        decoder = model.get("decoder") if isinstance(model, dict) else None
        recurrent = isinstance(decoder, dict) and decoder.get("kind") == "recurrent"
        if isinstance(batch, dict) and batch.get("mode") is None:
            raw = {**raw, "batch": {**batch, "mode": "stream" if recurrent else "crops"}}
        return super().settle(raw)

    def fits(self, recipe: Recipe) -> Iterator[str]:
        assert isinstance(recipe.model, AutoregressiveOptions)
        decoder = recipe.model.decoder
        if recipe.model.encoder is not None:
            yield "model.encoder is given, and a language model is a decoder alone; leave it out, or set task: translate"
        if recipe.data.target is not None:
            yield "data.target is given, and a language model reads one text; leave it out, or set task: translate"
        if recipe.data.source is not None and not _has_fields(recipe):
            yield "data.source is given, and a language model reads one text; leave it out, or set task: translate"
        if recipe.batch.mode == "stream" and isinstance(decoder, TransformerOptions):
            yield "batch.mode is stream, which carries a recurrent state on, and a Transformer has none; take crops or lines"

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
        nll, tokens = negative_log_likelihood(model, material.batches(split, recipe, world))
        return {"nll": nll, "tokens": tokens}

    def answers(self, model: Any, sources: list[str], recipe: Recipe, beam: int, progress: bool) -> list[Any]:
        return []

    def scores(
        self, parts: list[dict[str, Any]], model: Any, material: Datasets, split: str
    ) -> dict[str, Any]:
        nll, tokens = sum(p["nll"] for p in parts), sum(p["tokens"] for p in parts)
        text = LanguageScores(nll, tokens, count_text(material.texts(split)[1]))
        return {
            "loss": nll / tokens, "perplexity": perplexity(nll, tokens),
            "word_perplexity": text.word_perplexity, "bits_per_character": text.bits_per_character,
        }  # fmt: skip


def _has_fields(recipe: Recipe) -> bool:
    """Whether a file has named fields, of which a language model reads data.source."""
    files = [*recipe.data.train, *recipe.data.validation, *recipe.data.test]
    return any(isinstance(file, str) and (".jsonl" in file or ".ndjson" in file) for file in files)
